# What the supervisor and the shell share: noting that a command has ended. POSIX sh, builtins only.
# Runs inside the user's own shell too, so it survives set -e, -u, -C, -f and a changed IFS, and needs no PATH.

# __ty_finish NUMBER STATUS: write the status, then wake everyone who registered in NUMBER.for.
# A waiter registers first and looks for the status second, so one of the two sees the other.
__ty_finish() {
    if [ ! -s "$__ty_dir/$1.status" ]; then
        command printf '%s\n' "$2" >| "$__ty_dir/$1.status"
    fi
    # Before anybody is told: who hears that it has ended must not see it running.
    command true >| "$__ty_dir/current"
    if [ -s "$__ty_dir/$1.for" ]; then
        while IFS= command read -r __ty_line; do
            if [ -p "$__ty_dir/lines/$__ty_line" ]; then
                # Opened for both ways, a FIFO never blocks its writer, even when its reader has died.
                command printf '%s\n' "$1" 1<> "$__ty_dir/lines/$__ty_line"
            fi
        done < "$__ty_dir/$1.for"
    fi
    __ty_wake_viewer
}

# The viewer says that it is about to wait by writing `viewer.idle`; nobody else is ever written to.
__ty_wake_viewer() {
    if [ -s "$__ty_dir/viewer.idle" ]; then
        command printf '\n' 1<> "$__ty_dir/show"
    fi
    return 0
}
