# Ctrl-C for the command that runs, as its terminal would: SIGINT to the foreground process group. Expects D, wanted, and
# session_alive.sh before it.
ty_busy
if [ "$running" = - ] || [ ! -s "$D/shell" ] || ! alive; then exit 0; fi
if [ -n "$wanted" ] && [ "$wanted" != "$running" ]; then exit 0; fi
read -r shell < "$D/shell"
# The shell may not have come to it yet; told now, nothing would hear.
tries=0
while [ "$tries" -lt 100 ] && [ ! -s "$D/current" ] && [ ! -s "$D/$running.status" ]; do
    tries=$((tries + 1))
    sleep 0.05
done
told= early= tries=0 same=0
while [ "$tries" -lt 20 ] && [ "$same" -lt 4 ] && [ ! -s "$D/$running.status" ]; do
    read -r stat < "/proc/$pid/stat" || exit 0
    # After the name in parentheses: state ppid pgrp session tty_nr tpgid
    set -- ${stat##*) }
    if [ "$6" -le 1 ]; then exit 0; fi
    # A person would look and press again where it had no effect: where only the shell was told, which was just about to
    # start the command, or where the program that was told had just ended and the next of the list runs now. A program
    # that was told and still runs is busy with it: it is not told twice.
    # One that was told between fork and exec was still the shell, and did not hear it either.
    is_shell=
    if [ "/proc/$6/exe" -ef "/proc/$shell/exe" ]; then is_shell=1; fi
    if [ "$6" = "$shell" ] || [ "$6" != "$told" ] || { [ -n "$early" ] && [ -z "$is_shell" ]; }; then
        kill -INT "-$6" 2>/dev/null
        told=$6 same=0 early=$is_shell
    else
        same=$((same + 1))
    fi
    tries=$((tries + 1))
    sleep 0.05
done
