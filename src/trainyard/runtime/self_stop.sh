# Stops the machines of a job from one of them when nobody needs them any more: no client has to live for that.
#     sh self_stop.sh watch      look again and again
#     sh self_stop.sh boot       the same after a boot
#     sh self_stop.sh ask        "willing" or "busy", for the machine that decides
#     sh self_stop.sh ended      note that we are being stopped as arranged
# Has session_alive.sh in front of it. `terms`, beside this file, sets: me; names and ids of all machines of the job, in
# order; when_done (yes or empty), idle_seconds (or empty), grace_seconds, look_seconds; arguments of stop.py. POSIX sh.
folder=$(cd "$(dirname "$0")" && pwd) || exit 1
. "$folder/terms" || exit 1

say() { printf '%s %s\n' "$(date -u '+%Y-%m-%d %H:%M:%S')" "$1" >>"$folder/log"; }

# Sets idle: for how many seconds nothing has run in any session, 0 while something runs; and submitted: when the newest
# command came. Commands run in order, so the newest one ends last; one whose session is dead never ends.
measure_idleness() {
    newest=$(stat -c %Y "$folder/since") submitted=0
    for D in "$folder"/../*/ "$folder"/../*/w[0-9]*/; do
        D=${D%/}
        [ -s "$D/last" ] && read -r last <"$D/last" || continue
        if [ ! -s "$D/$last.status" ]; then
            alive && idle=0 && return
            continue
        fi
        stamp=$(stat -c %Y "$D/last")
        [ "$stamp" -le "$submitted" ] || submitted=$stamp
        stamp=$(stat -c %Y "$D/$last.status")
        [ "$stamp" -le "$newest" ] || newest=$stamp
    done
    idle=$(($(date +%s) - newest))
}

# Whether a client has given a sign of life within the grace. Sets heard: when the last one did, or said good-bye.
is_watched() {
    heard=$(stat -c %Y "$folder/left" 2>/dev/null || echo 0)
    for file in "$folder"/clients/*; do
        stamp=$(stat -c %Y "$file" 2>/dev/null) || continue
        [ $(($(date +%s) - stamp)) -ge "$grace_seconds" ] || return 0
        [ "$stamp" -le "$heard" ] || heard=$stamp
    done
    return 1
}

# Whether the newest command is of somebody who gives no signs of life, and may send another one soon.
is_visited() { [ "$submitted" -gt $((heard + grace_seconds / 5)) ] && [ "$idle" -lt "$grace_seconds" ]; }

# Whether somebody has typed into a terminal of ours within $1 seconds. One that nobody has typed into yet, as those of
# our sessions, was read last when it was made.
is_typed() {
    for file in /dev/pts/[0-9]*; do
        [ -O "$file" ] && stamps=$(stat -c '%X %Z' "$file" 2>/dev/null) || continue
        if [ "${stamps% *}" -gt "${stamps#* }" ] && [ $(($(date +%s) - ${stamps% *})) -lt "$1" ]; then return 0; fi
    done
    return 1
}

# Sets reason.
is_willing() {
    measure_idleness
    [ "$idle" != 0 ] || return 1
    if [ -n "$when_done" ] && ! is_watched && ! is_visited && ! is_typed "$grace_seconds"; then
        reason='the commands have ended and the client is gone'
        return 0
    fi
    reason="nothing has run for $idle seconds"
    [ -n "$idle_seconds" ] && [ "$idle" -ge "$idle_seconds" ] && ! is_typed "$idle_seconds"
}

reach() { ssh -n -o BatchMode=yes -o ConnectTimeout=10 "$1" "sh .trainyard/self-stop/self_stop.sh $2" 2>/dev/null; }

# Sets answer: willing, busy, silent; gone after a grace of silence (somebody has stopped or released it).
ask() {
    answer=$(reach "$1" ask)
    case $answer in
        willing | busy) rm -f "$folder/silent.$1" && return ;;
    esac
    answer=silent
    [ -e "$folder/silent.$1" ] || echo >"$folder/silent.$1"
    [ $(($(date +%s) - $(stat -c %Y "$folder/silent.$1"))) -lt "$grace_seconds" ] || answer=gone
}

# The first machine of the job that answers decides for all of them, and only when all are willing: one that has no
# command of its own may be working for another.
look() {
    is_willing || return 0
    why=$reason is_before=yes chosen='' others=''
    set -- $ids
    for name in $names; do
        id=$1
        shift
        if [ "$name" = "$me" ]; then
            is_before='' own=$id
            continue
        fi
        ask "$name"
        [ "$answer" != gone ] || continue
        if [ -n "$is_before" ] || [ "$answer" != willing ]; then return 0; fi
        chosen="$chosen $id" others="$others $name"
    done
    is_willing || return 0 # asking takes a while
    for name in $others; do reach "$name" ended; done
    echo >"$folder/ended"
    say "stopping $me$others: $why"
    # Ourselves last: what comes after us would not be done.
    if said=$(python3 "$folder/stop.py" $arguments $chosen "$own" 2>&1); then
        pause=$look_seconds
    else
        rm -f "$folder/ended"
        say "cannot stop: ${said:-no reason was given}"
        pause=$((pause * 2 > 600 ? 600 : pause * 2))
    fi
}

watch() {
    echo "$$" >"$folder/pid"
    pause=$look_seconds
    while :; do
        sleep "$pause"
        [ "$(cat "$folder/pid" 2>/dev/null)" = "$$" ] || exit 0 # another one has taken over, or it was called off
        . "$folder/terms" || exit 1
        look
    done
}

case $1 in
    watch) watch ;;
    boot)
        # Who starts a machine that was stopped as arranged does not want that again at once.
        if [ -e "$folder/ended" ]; then
            rm -f "$folder/ended"
            echo "when_done=''" >>"$folder/terms"
            [ -n "$idle_seconds" ] || exit 0
        fi
        rm -f "$folder"/silent.*
        mkdir -p "$folder/clients"
        echo >"$folder/clients/boot"
        echo >"$folder/since"
        watch
        ;;
    ask) if is_willing; then echo willing; else echo busy; fi ;;
    ended) echo >"$folder/ended" ;;
esac
