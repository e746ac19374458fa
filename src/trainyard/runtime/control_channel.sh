# How a client talks to a session: a long-lived sh that takes these statements on stdin and answers on stdout.
#     ty_open                  "! PID", once, before the others
#     ty_look                  "? alive|dead RUNNING LAST VARIABLES": the session as it is; the last is what job.env is called
#     ty_submit TOKEN TEXT     "+ NUMBER"; "+ full" where the disk has no room for it
#     ty_wait NUMBER           "= NUMBER STATUS SIZE": wait for its end
#     ty_wait NUMBER MARK      "= NUMBER STATUS -", the first 64 KiB of its output, and a line with MARK behind them
#     ty_rest NUMBER           "= NUMBER STATUS SIZE", and the output from 64 KiB to SIZE
# Builtins only on the way of a command without output, so it costs no process. Every fact is a file in the folder:
# a line that dies loses nothing.
set -C
lines=$D/lines

# A line that has ended leaves its FIFO to the next one: a killed one does so anyway, and making or renaming one costs a
# process. NB: no trap could tidy up either: a shell that waits for input runs it only after the next statement.
ty_open() {
    [ -d "$lines" ] || (umask 077 && mkdir -p "$lines" "$D/tokens")
    ty_fifo=
    for ty_fifo in "$lines"/*; do
        if [ -p "$ty_fifo" ] && ty_claim; then break; fi
        ty_fifo=
    done
    if [ -z "$ty_fifo" ]; then
        ty_fifo=$lines/$$
        rm -f "$ty_fifo" "$ty_fifo.heirs" # of a process that had our number
        mkfifo -m 600 "$ty_fifo"
    fi
    exec 3<> "$ty_fifo"
    ty_fifo=${ty_fifo##*/}
    n=0
    if [ -s "$D/last" ]; then read -r n < "$D/last"; fi
    printf '! %s\n' "$$"
}

# Whether the FIFO ty_fifo is ours from now on. It belongs to the process that it is named after, and after its death to
# its heirs. Whoever wants it appends itself first and looks for others then, so of two at once one sees the other.
ty_claim() {
    if kill -0 "${ty_fifo##*/}" 2>/dev/null && [ "${ty_fifo##*/}" != "$$" ] || ty_has_heir; then return 1; fi
    printf '%s ' "$$" >> "$ty_fifo.heirs"
    if ty_has_heir; then return 1; fi
    if [ "${#ty_heirs}" -gt 200 ]; then
        # Reading a longer list would cost more than a new FIFO. Ours, so nobody else uses it; the list goes last.
        rm -f "$ty_fifo" "$ty_fifo.heirs"
    fi
    [ -p "$ty_fifo" ]
}

ty_has_heir() {
    ty_heirs=
    if [ -e "$ty_fifo.heirs" ]; then read -r ty_heirs < "$ty_fifo.heirs"; fi
    for ty_heir in $ty_heirs; do
        # One with our number that is not us is dead.
        if [ "$ty_heir" != "$$" ] && kill -0 "$ty_heir" 2>/dev/null; then return 0; fi
    done
    return 1
}

ty_look() {
    ty_alive=dead ty_variables=-
    ty_busy
    if alive && [ -s "$D/shell" ]; then ty_alive=alive; fi
    if [ -s "$D/job.env" ]; then read -r _ ty_variables _ < "$D/job.env"; fi
    # Empty where a file is just being written.
    printf '? %s %s %s %s\n' "$ty_alive" "$running" "$last" "${ty_variables:--}"
}

# The same token twice is the same command: a client that lost its answer simply asks again.
ty_submit() {
    if [ -s "$D/tokens/$1" ]; then
        read -r n < "$D/tokens/$1"
    else
        n=$((n + 1))
        until { true > "$D/$n.cmd"; } 2>/dev/null; do
            if [ ! -e "$D/$n.cmd" ]; then ty_full "$1"; return; fi
            n=$((n + 1))
        done
        # All write `last`, so it may be empty again a moment later.
        if ! { ty_put "$n.cmd" "$2" && printf '%s\n' "$n" >| "$D/last" && ty_put "tokens/$1" "$n"; } 2>/dev/null; then
            ty_full "$1"
            return
        fi
    fi
    ty_wake "$n"
    printf '+ %s\n' "$n"
}

# Where the disk is full. Half a command, or one that nobody can find again, must not run.
ty_put() { printf '%s\n' "$2" >| "$D/$1" && [ -s "$D/$1" ]; }
ty_full() {
    rm -f "$D/$n.cmd" "$D/tokens/$1"
    n=0
    printf '+ full\n'
}

ty_wait() {
    if [ "$1" = 0 ]; then return; fi
    ty_status=
    if [ ! -s "$D/$1.status" ]; then
        { printf '%s\n' "$ty_fifo" >> "$D/$1.for"; } 2>/dev/null || ty_status=full
    fi
    while [ -z "$ty_status" ] && [ ! -s "$D/$1.status" ]; do
        read -r ty_news ty_told <&3 || break
        if [ "$ty_news" = "$1" ]; then ty_status=$ty_told; fi
    done
    if [ -z "${2:-}" ] || [ ! -s "$D/$1.out" ]; then
        ty_end "$1"
    else
        # One process instead of two for what is not long: nobody asks for its size first. None for a short plain text.
        if [ -s "$D/$1.status" ]; then read -r ty_status < "$D/$1.status"; fi
        printf '= %s %s -\n' "$1" "$ty_status"
        if [ -s "$D/$1.short" ] && ty_short "$D/$1.short"; then
            printf '%s\n%s\n' "$ty_text" "$2"
        else
            head -c 65536 "$D/$1.out"
            printf '\n%s\n' "$2"
        fi
    fi
}

# Sets ty_text. Only what every sh can hold unchanged in a variable; each letter is named, since what a range means
# depends on the language.
ty_plain='] !"#$%&()*+,./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\^_`abcdefghijklmnopqrstuvwxyz{|}	~-'"'"
ty_newline='
'
ty_short() {
    ty_text=
    while IFS= read -r ty_line; do ty_text=$ty_text$ty_line$ty_newline; done < "$1"
    ty_text=$ty_text$ty_line
    case $ty_text in *[!"$ty_plain$ty_newline"]*) return 1 ;; esac
}

ty_rest() {
    ty_end "$1"
    tail -c +65537 "$D/$1.out" | head -c "$((ty_size - 65536))"
}

ty_end() {
    if [ -s "$D/$1.status" ]; then read -r ty_status < "$D/$1.status"; fi
    ty_size=0
    if [ -s "$D/$1.out" ]; then ty_size=$(wc -c < "$D/$1.out"); ty_size=$((ty_size)); fi
    printf '= %s %s %s\n' "$1" "$ty_status" "$ty_size"
}
