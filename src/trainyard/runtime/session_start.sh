# Make sure that a session runs. Expects D (folder), NAME (tmux session), WINDOW; the other files are in D already.
# Answers "alive PID CURRENT LAST" or "started PID CURRENT LAST"; "no-tmux" where tmux is missing.
mkdir -p "$D/lines" "$D/tokens"
chmod 700 "$D"

alive() {
    [ -s "$D/pid" ] && read -r pid < "$D/pid" && kill -0 "$pid" 2>/dev/null &&
        grep -q session.sh "/proc/$pid/cmdline" 2>/dev/null
}

answer() {
    current=- last=0
    if [ -s "$D/current" ]; then read -r current < "$D/current"; fi
    if [ -s "$D/last" ]; then read -r last < "$D/last"; fi
    printf '%s %s %s %s\n' "$1" "$pid" "$current" "$last"
}

if alive; then answer alive; exit 0; fi
if ! command -v tmux >/dev/null 2>&1; then echo no-tmux; exit 0; fi

for fifo in in show life; do [ -p "$D/$fifo" ] || { rm -f "$D/$fifo"; mkfifo -m 600 "$D/$fifo"; }; done
[ -p "$D/up" ] || mkfifo -m 600 "$D/up"
exec 3<> "$D/up"
find "$D/tokens" -type f -mtime +1 -exec rm -f {} + 2>/dev/null

# The pane's environment is written out, because a tmux server that runs already would give it its own. The server
# itself must not carry the mark of one machine: ending that machine would end the sessions of all.
quote() { printf "'"; printf '%s' "$1" | sed "s/'/'\\\\''/g"; printf "'"; }
{
    export -p
    echo 'unset TMUX TMUX_PANE'
    printf 'exec sh %s/session.sh %s\n' "$(quote "$D")" "$(quote "$D")"
} >| "$D/pane.sh"
{
    printf 'D=%s NAME=%s WINDOW=%s pane=%s\n' "$(quote "$D")" "$(quote "$NAME")" "$WINDOW" \
        "$(quote "sh $(quote "$D/pane.sh")")"
    cat <<'INNER'
tmux_run() { env -u TRAINYARD_MACHINE tmux "$@"; }
if [ "$WINDOW" != 0 ] && tmux_run has-session -t "=$NAME" 2>/dev/null; then
    tmux_run new-window -d -t "=$NAME:$WINDOW" -n "$WINDOW" "$pane" || echo failed 1<> "$D/up"
else
    tmux_run start-server \; set-option -g history-limit 50000 \; \
        new-session -d -s "$NAME" -n "$WINDOW" -x 200 -y 50 "$pane" || echo failed 1<> "$D/up"
    tmux_run set-option -t "=$NAME:" status-left " $NAME  " \; set-option -t "=$NAME:" status-left-length 70 \; \
        set-option -t "=$NAME:" status-right " Ctrl-b d leaves, Ctrl-b c opens a shell "
fi
INNER
} >| "$D/launch.sh"
if [ -n "${TRAINYARD_KEEPER:-}" ] && [ -p "$TRAINYARD_KEEPER" ]; then
    printf '%s\n' "$D/launch.sh" 1<> "$TRAINYARD_KEEPER"
else
    sh "$D/launch.sh" >| "$D/launch.log" 2>&1
fi
read -r news <&3
# Of two clients that start it at once, one is told that the name is taken: the other's session is coming up.
tries=0
until alive || [ "$tries" = 100 ]; do tries=$((tries + 1)); sleep 0.05; done
if alive; then answer started; else echo "failed"; cat "$D/launch.log" 2>/dev/null; fi
