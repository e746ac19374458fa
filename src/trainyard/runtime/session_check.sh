# Does the session live? Expects D, n: a command somebody waits for (0 for none), and session_alive.sh
# and session_wake.sh before it.
# "alive|dead RUNNING LAST"
alive=dead
ty_busy
if alive; then alive=alive; fi
# A command that has ended is no longer at the mercy of the session.
if [ "$n" != 0 ] && [ -s "$D/$n.status" ]; then
    # Its waiter may have missed the news (its FIFO was gone for a moment): tell it again.
    while read -r line; do [ ! -p "$D/lines/$line" ] || echo "$n" 1<> "$D/lines/$line"; done < "$D/$n.for"
    alive=alive
# An idle shell and a command that was never started: the wake-up was lost (an interrupt can eat it). Again.
elif [ "$n" != 0 ] && [ "$alive" = alive ] && [ ! -s "$D/current" ] && [ ! -e "$D/$n.out" ]; then
    ty_wake "$n"
fi
# The shell is in front of its terminal, so it may be idle: a second Ctrl-C can end the noting of an end. Note it again;
# while a command of builtins runs, the line just waits behind it.
if [ "$n" != 0 ] && [ "$alive" = alive ] && [ "$running" = "$n" ] && [ ! -s "$D/$n.status" ]; then
    read -r shell < "$D/shell"
    read -r stat < "/proc/$pid/stat"
    set -- ${stat##*) }
    if [ "$6" = "$shell" ] || ! kill -0 "-$6" 2>/dev/null; then printf '__ty_done\n' 1<> "$D/in"; fi
fi
printf '%s %s %s\n' "$alive" "$running" "$last"
