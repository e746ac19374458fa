# Make sure that a session runs. Expects session_alive.sh before it, and
#     D (its folder), F (the far side's files), NAME (tmux session), WINDOW,
#     variables and variables_name (the text of job.env and what it is called; empty for none).
# Answers "alive PID RUNNING LAST" or "started PID RUNNING LAST"; "no-tmux" where tmux is missing, "full" where the disk is.
# A machine starts dozens of these at once: builtins where they will do.
umask 077
[ -d "$D/lines" ] && [ -d "$D/tokens" ] || mkdir -p "$D/lines" "$D/tokens" || exit 1

answer() {
    ty_busy
    printf '%s %s %s %s\n' "$1" "$pid" "$running" "$last"
}

# Variables for the shell: a new shell reads them as it starts; one that runs reads them when it is next idle.
changed= old=
if [ -s "$D/job.env" ]; then read -r _ old _ < "$D/job.env"; fi
if [ -n "$variables" ] && [ "$old" != "$variables_name" ]; then
    if ! printf '%s' "$variables" >| "$D/job.env.$$"; then
        rm -f "$D/job.env.$$"
        echo full
        exit 0
    fi
    mv -f "$D/job.env.$$" "$D/job.env"
    changed=1
fi

if alive && [ -s "$D/shell" ]; then
    if [ -n "$changed" ]; then printf '. "$__ty_dir/job.env"\n' 1<> "$D/in"; fi
    answer alive
    exit 0
fi
if ! command -v tmux >/dev/null 2>&1; then echo no-tmux; exit 0; fi

set --
for fifo in in show life; do [ -p "$D/$fifo" ] || set -- "$@" "$D/$fifo"; done
if [ "$#" != 0 ]; then mkfifo -m 600 "$@" 2>/dev/null; fi
set -- "$D/tokens"/*
if [ -e "$1" ]; then find "$D/tokens" -type f -mtime +1 -exec rm -f {} + 2>/dev/null; fi

# Sets quoted: one word for sh that stands for exactly $1.
quote() {
    rest=$1 quoted=
    while :; do
        case $rest in
        *\'*) quoted=$quoted${rest%%\'*}"'\\''" rest=${rest#*\'} ;;
        *) break ;;
        esac
    done
    quoted="'$quoted$rest'"
}

# The pane's environment is written out, because a tmux server that runs already would give it its own. The server
# itself must not carry the mark of one machine: ending that machine would end the sessions of all.
launch=$D/launch.$$
quote "$D"; folder=$quoted
quote "$F"; files=$quoted
{
    export -p
    echo 'unset TMUX TMUX_PANE'
    printf 'exec sh %s/session.sh %s %s\n' "$files" "$folder" "$files"
} >| "$launch.pane"
quote "$NAME"; name=$quoted
quote "$launch.pane"
printf 'NAME=%s WINDOW=%s PANE=%s\n. %s/session_launch.sh\n' "$name" "$WINDOW" "$quoted" "$files" >| "$launch.sh"
if [ -n "${TRAINYARD_KEEPER:-}" ] && [ -p "$TRAINYARD_KEEPER" ]; then
    printf '%s\n' "$launch.sh" 1<> "$TRAINYARD_KEEPER"
else
    sh "$launch.sh" >| "$launch.log" 2>&1
fi
# Of clients that start it at once, one wins; tmux tells the others that the name is taken, and they wait for it too.
tries=0
until alive && [ -s "$D/shell" ]; do
    tries=$((tries + 1))
    # A supervisor that lives has a slow profile to read; without one, something is wrong.
    if [ "$tries" -ge 250 ] && ! alive; then break; fi
    sleep 0.02
done
if alive; then
    answer started
elif ! printf '%s\n' "$$" >| "$launch.sh"; then
    echo full
else
    echo failed
    cat "$launch.log" 2>/dev/null
fi
rm -f "$launch.pane" "$launch.sh" "$launch.log"
