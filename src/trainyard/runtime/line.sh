# How a client talks to a session: a long-lived sh that takes these statements on stdin and answers on stdout.
#     ty_open                  "! PID", once, before the others
#     ty_look                  "? alive|dead RUNNING LAST VARIABLES": the session as it is; the last is what job.env is called
#     ty_submit TOKEN TEXT     "+ NUMBER"
#     ty_wait NUMBER           "= NUMBER STATUS SIZE": wait for its end
#     ty_wait NUMBER MARK      "= NUMBER STATUS -", the first 64 KiB of its output, and a line with MARK behind them
#     ty_rest NUMBER           "= NUMBER STATUS SIZE", and the output from 64 KiB to SIZE
# Builtins only on the way of a command without output, so it costs no process. Every fact is a file in the folder:
# a line that dies loses nothing.
set -C
lines=$D/lines

# A line that has ended leaves its FIFO to the next one: one process less at its end, and a killed one leaves it anyway.
# NB: no trap could tidy up either: a shell that waits for input runs it only after the next statement.
ty_open() {
    [ -d "$lines" ] || (umask 077 && mkdir -p "$lines" "$D/tokens")
    set --
    for ty_line in "$lines"/*; do kill -0 "${ty_line##*/}" 2>/dev/null || set -- "$@" "$ty_line"; done
    if [ -p "$lines/$$" ]; then
        : # of a process that had our number
    elif [ ! -p "${1:-}" ] || ! mv "$1" "$lines/$$" 2>/dev/null; then
        mkfifo -m 600 "$lines/$$"
    fi
    if [ "$#" -gt 1 ]; then shift; rm -f "$@"; fi
    exec 3<> "$lines/$$"
    n=0
    if [ -s "$D/last" ]; then read -r n < "$D/last"; fi
    printf '! %s\n' "$$"
}

ty_look() {
    ty_alive=dead ty_running=- ty_last=0 ty_variables=-
    if alive && [ -s "$D/shell" ]; then ty_alive=alive; fi
    if [ -s "$D/current" ]; then read -r ty_running < "$D/current"; fi
    if [ -s "$D/last" ]; then read -r ty_last < "$D/last"; fi
    if [ -s "$D/job.env" ]; then read -r _ ty_variables _ < "$D/job.env"; fi
    printf '? %s %s %s %s\n' "$ty_alive" "$ty_running" "$ty_last" "${ty_variables:--}"
}

# The same token twice is the same command: a client that lost its answer simply asks again.
ty_submit() {
    if [ -s "$D/tokens/$1" ]; then
        read -r n < "$D/tokens/$1"
    else
        n=$((n + 1))
        until { true > "$D/$n.cmd"; } 2>/dev/null; do n=$((n + 1)); done
        printf '%s\n' "$2" >| "$D/$n.cmd"
        printf '%s\n' "$n" >| "$D/last"
        printf '%s\n' "$n" >| "$D/tokens/$1"
    fi
    ty_wake "$n"
    printf '+ %s\n' "$n"
}

ty_wake() {
    printf '__ty_start %s\n. "$__ty_cmd" </dev/null >|"$__ty_out" 2>&1\n__ty_done\n__ty_done\n' "$1" 1<> "$D/in"
}

ty_wait() {
    if [ ! -s "$D/$1.status" ]; then printf '%s\n' "$$" >> "$D/$1.for"; fi
    while [ ! -s "$D/$1.status" ]; do read -r ty_news <&3 || break; done
    if [ -z "${2:-}" ] || [ ! -s "$D/$1.out" ]; then
        ty_end "$1"
    else
        # One process instead of two for what is not long: nobody asks for its size first.
        read -r ty_status < "$D/$1.status"
        printf '= %s %s -\n' "$1" "$ty_status"
        head -c 65536 "$D/$1.out"
        printf '\n%s\n' "$2"
    fi
}

ty_rest() {
    ty_end "$1"
    tail -c +65537 "$D/$1.out" | head -c "$((ty_size - 65536))"
}

ty_end() {
    read -r ty_status < "$D/$1.status"
    ty_size=0
    if [ -s "$D/$1.out" ]; then ty_size=$(wc -c < "$D/$1.out"); ty_size=$((ty_size)); fi
    printf '= %s %s %s\n' "$1" "$ty_status" "$ty_size"
}
