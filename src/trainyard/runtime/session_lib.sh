# What the supervisor and the shell share: noting that a command has ended. POSIX sh, builtins only.
# Runs inside the user's own shell too, so it survives set -e, -u, -C, -f and a changed IFS, and needs no PATH.

# The file `room` keeps a little space for noting an end: a command may fill the disk.
__ty_keep_room() {
    if [ ! -s "$__ty_dir/room" ]; then command printf '%8192s\n' '' >| "$__ty_dir/room" || command true; fi
}

# __ty_write FILE TEXT: one line. Where the disk is full the room is given up for it; fails where even that does not help.
__ty_write() {
    command printf '%s\n' "$2" >| "$__ty_dir/$1" || command true
    if [ -s "$__ty_dir/$1" ]; then return 0; fi
    command true >| "$__ty_dir/room" || command true
    command printf '%s\n' "$2" >| "$__ty_dir/$1" || command true
    [ -s "$__ty_dir/$1" ]
}

# Ends that a full disk kept from being noted: NUMBER:STATUS, a blank behind each. Tried again by __ty_note_late.
__ty_unnoted=
__ty_note_late() {
    __ty_late=$__ty_unnoted __ty_unnoted=
    while [ -n "$__ty_late" ]; do
        __ty_one=${__ty_late%% *} __ty_late=${__ty_late#* }
        __ty_finish "${__ty_one%%:*}" "${__ty_one#*:}"
    done
}

# __ty_finish NUMBER STATUS: write the status, then tell everyone who registered in NUMBER.for.
# A waiter registers first and looks for the status second, so one of the two sees the other. Who is told the status
# needs no file for it: on a full disk there may be none.
__ty_finish() {
    if [ ! -s "$__ty_dir/$1.status" ] && ! __ty_write "$1.status" "$2"; then
        __ty_unnoted="$__ty_unnoted$1:$2 "
    fi
    # Before anybody is told: who hears that it has ended must not see it running.
    command true >| "$__ty_dir/current"
    if [ -s "$__ty_dir/$1.for" ]; then
        while IFS= command read -r __ty_line; do
            if [ -p "$__ty_dir/lines/$__ty_line" ]; then
                # Opened for both ways, a FIFO never blocks its writer, even when its reader has died.
                command printf '%s %s\n' "$1" "$2" 1<> "$__ty_dir/lines/$__ty_line"
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
