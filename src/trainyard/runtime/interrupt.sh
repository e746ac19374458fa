# Ctrl-C for the command that runs, as its terminal would: SIGINT to the foreground process group. Expects D, wanted.
if [ ! -s "$D/current" ] || [ ! -s "$D/pid" ] || [ ! -s "$D/shell" ]; then exit 0; fi
read -r running < "$D/current"
if [ -n "$wanted" ] && [ "$wanted" != "$running" ]; then exit 0; fi
read -r pid < "$D/pid"
read -r shell < "$D/shell"
tries=0
while [ "$tries" -lt 20 ] && [ ! -s "$D/$running.status" ]; do
    read -r stat < "/proc/$pid/stat" || exit 0
    # After the name in parentheses: state ppid pgrp session tty_nr tpgid
    set -- ${stat##*) }
    if [ "$6" -le 1 ]; then exit 0; fi
    kill -INT "-$6"
    if [ "$6" != "$shell" ]; then exit 0; fi
    # It reached the shell alone: either the command is all builtins and has ended now, or the shell was just about to
    # start it, and only its start was interrupted. Then once more.
    sleep 0.05
    tries=$((tries + 1))
done
