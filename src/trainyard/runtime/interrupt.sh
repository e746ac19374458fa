# Ctrl-C for the command that runs, as its terminal would: SIGINT to the foreground process group. Expects D, wanted.
if [ ! -s "$D/current" ] || [ ! -s "$D/pid" ]; then exit 0; fi
read -r running < "$D/current"
if [ -n "$wanted" ] && [ "$wanted" != "$running" ]; then exit 0; fi
read -r pid < "$D/pid"
read -r stat < "/proc/$pid/stat" || exit 0
# After the name in parentheses: state ppid pgrp session tty_nr tpgid
set -- ${stat##*) }
if [ "$6" -gt 1 ]; then kill -INT "-$6"; fi
