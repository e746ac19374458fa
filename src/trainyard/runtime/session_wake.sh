# Tell the shell of a session to run a command whose text is there. Expects D. A builtin only.
ty_wake() {
    printf '__ty_start %s\n. "$__ty_cmd" </dev/null >|"$__ty_out" 2>&1\n__ty_done\n__ty_done\n' "$1" 1<> "$D/in"
}
