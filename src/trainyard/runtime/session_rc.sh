# The start-up file of the session's shell: the user's own profile, then what runs before and after each command.
# The shell reads its input from a FIFO; for command N it gets these lines:
#     __ty_start N
#     . "$__ty_cmd" </dev/null >|"$__ty_out" 2>&1
#     __ty_done
#     __ty_done      (nothing to do, unless a second Ctrl-C cut the first one short)
# The user's text is sourced at top level, never inside a function, so `declare`, `cd` and `set` mean what they say.
__ty_dir=$TRAINYARD_SESSION

if [ -r /etc/profile ]; then . /etc/profile; fi
# /etc/profile sets a PATH of its own; what the machine was given stands first. The user's profile may add to it.
PATH=$TRAINYARD_SESSION_PATH
export PATH
__ty_profile=
if [ -n "${BASH_VERSION:-}" ]; then
    for __ty_profile in "$HOME/.bash_profile" "$HOME/.bash_login" "$HOME/.profile" "$HOME/.bashrc"; do
        if [ -r "$__ty_profile" ]; then . "$__ty_profile"; break; fi
    done
elif [ -r "$HOME/.profile" ]; then
    . "$HOME/.profile"
fi

if [ -r "$__ty_dir/job.env" ]; then . "$__ty_dir/job.env"; fi
if [ -n "${TRAINYARD_RESTORE:-}" ] && [ -s "$__ty_dir/state" ]; then
    . "$__ty_dir/state" 2>/dev/null
    unset TRAINYARD_RESTORE
    cd "$PWD" 2>/dev/null || cd "$HOME"
fi
PS1= PS2= PROMPT_COMMAND=
unset HISTFILE TRAINYARD_RESTORE __ty_profile

. "$TRAINYARD_SESSION_FILES/session_lib.sh"

__ty_n= __ty_cmd=/dev/null __ty_out=/dev/null

__ty_start() {
    __ty_n= __ty_cmd=/dev/null __ty_out=/dev/null
    # Already started: a repeated wake-up is harmless.
    if [ -e "$__ty_dir/$1.out" ] || [ -s "$__ty_dir/$1.status" ]; then return 0; fi
    if [ -n "$__ty_unnoted" ]; then __ty_note_late; fi
    # Whoever may not note that it runs, and how it ends, must not run it.
    if ! __ty_write current "$1" || ! command true >| "$__ty_dir/$1.out"; then
        __ty_finish "$1" full
        return 0
    fi
    __ty_keep_room
    __ty_n=$1 __ty_cmd=$__ty_dir/$1.cmd __ty_out=$__ty_dir/$1.out
    # After the file: the viewer shows what has one.
    command printf '%s\n' "$1" >| "$__ty_dir/started"
    __ty_wake_viewer
}

__ty_done() {
    __ty_status=$?
    if [ -n "$__ty_unnoted" ]; then __ty_note_late; fi
    if [ -z "$__ty_n" ]; then return 0; fi
    # Ended by SIGHUP: it may be the terminal that has gone, or the supervisor, and this shell is next. Then the guard says
    # `lost`, however long it takes to come to that.
    if [ "$__ty_status" = 129 ]; then
        command sleep 0.5 || command true
        if [ ! -e "/proc/$PPID/exe" ] || ! command true >| /dev/tty; then
            __ty_n=
            command kill -HUP "$$"
            return 0
        fi
    fi
    export -p >| "$__ty_dir/state"
    if [ -s "$__ty_out" ]; then __ty_keep_short; fi
    __ty_finish "$__ty_n" "$__ty_status"
    # Where Ctrl-C eats the next `__ty_start`, nothing is run: this command least of all.
    __ty_n= __ty_cmd=/dev/null __ty_out=/dev/null
}

# A short text that a command printed is copied to N.short: whoever wants it needs no process to read it, as it does
# for a file that may be endless. (At a NUL, and at the last character allowed, `read` succeeds.)
__ty_keep_short() {
    if [ -n "${BASH_VERSION:-}" ] && ! IFS= command read -r -d '' -n 401 __ty_text < "$__ty_out"; then
        command printf '%s' "$__ty_text" >| "$__ty_dir/$__ty_n.short"
    fi
    __ty_text=
}

# `exit` and `set -e` end the shell; the supervisor notes the status and starts the next one from this state.
trap 'export -p >| "$__ty_dir/state"' EXIT

printf '%s\n' "$$" >| "$__ty_dir/shell"
