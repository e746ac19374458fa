# Start the supervisor in a tmux window. Set in front by session_start.sh: NAME (session), WINDOW, PANE (its script).
unset TRAINYARD_MACHINE
if [ "$WINDOW" != 0 ] && tmux has-session -t "=$NAME" 2>/dev/null; then
    exec tmux new-window -d -t "=$NAME:$WINDOW" -n "$WINDOW" sh "$PANE"
fi
exec tmux start-server \; set-option -g history-limit 50000 \; \
    new-session -d -s "$NAME" -n "$WINDOW" -x 200 -y 50 sh "$PANE" \; \
    set-option -t "=$NAME:" status-left " $NAME  " \; set-option -t "=$NAME:" status-left-length 70 \; \
    set-option -t "=$NAME:" status-right " Ctrl-b d leaves, Ctrl-b c opens a shell "
