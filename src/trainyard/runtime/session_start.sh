# Make sure that a session runs. Expects D (its folder), F (the far side's files), NAME (tmux session), WINDOW;
# and session_alive.sh before it.
# Answers "alive PID CURRENT LAST" or "started PID CURRENT LAST"; "no-tmux" where tmux is missing.
mkdir -p "$D/lines" "$D/tokens"
chmod 700 "$D"

answer() {
    current=- last=0
    if [ -s "$D/current" ]; then read -r current < "$D/current"; fi
    if [ -s "$D/last" ]; then read -r last < "$D/last"; fi
    printf '%s %s %s %s\n' "$1" "$pid" "$current" "$last"
}

# Variables for the shell: a new shell reads them as it starts; one that runs reads them when it is next idle.
changed=
if [ -e "$D/job.env.$$" ]; then
    if cmp -s "$D/job.env.$$" "$D/job.env"; then rm -f "$D/job.env.$$"; else mv -f "$D/job.env.$$" "$D/job.env"; changed=1; fi
fi

if alive && [ -s "$D/shell" ]; then
    if [ -n "$changed" ]; then printf '. "$__ty_dir/job.env"\n' 1<> "$D/in"; fi
    answer alive
    exit 0
fi
if ! command -v tmux >/dev/null 2>&1; then echo no-tmux; exit 0; fi

for fifo in in show life; do [ -p "$D/$fifo" ] || mkfifo -m 600 "$D/$fifo" 2>/dev/null; done
find "$D/tokens" -type f -mtime +1 -exec rm -f {} + 2>/dev/null

# The pane's environment is written out, because a tmux server that runs already would give it its own. The server
# itself must not carry the mark of one machine: ending that machine would end the sessions of all.
quote() { printf "'"; printf '%s' "$1" | sed "s/'/'\\\\''/g"; printf "'"; }
launch=$D/launch.$$
{
    export -p
    echo 'unset TMUX TMUX_PANE'
    printf 'exec sh %s/session.sh %s %s\n' "$(quote "$F")" "$(quote "$D")" "$(quote "$F")"
} >| "$launch.pane"
{
    printf 'D=%s NAME=%s WINDOW=%s pane=%s\n' "$(quote "$D")" "$(quote "$NAME")" "$WINDOW" \
        "$(quote "sh $(quote "$launch.pane")")"
    cat <<'INNER'
tmux_run() { env -u TRAINYARD_MACHINE tmux "$@"; }
if [ "$WINDOW" != 0 ] && tmux_run has-session -t "=$NAME" 2>/dev/null; then
    tmux_run new-window -d -t "=$NAME:$WINDOW" -n "$WINDOW" "$pane"
else
    tmux_run start-server \; set-option -g history-limit 50000 \; \
        new-session -d -s "$NAME" -n "$WINDOW" -x 200 -y 50 "$pane"
    tmux_run set-option -t "=$NAME:" status-left " $NAME  " \; set-option -t "=$NAME:" status-left-length 70 \; \
        set-option -t "=$NAME:" status-right " Ctrl-b d leaves, Ctrl-b c opens a shell "
fi
INNER
} >| "$launch.sh"
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
if alive; then answer started; else echo failed; cat "$launch.log" 2>/dev/null; fi
rm -f "$launch.pane" "$launch.sh" "$launch.log"
