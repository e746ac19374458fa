# Where the last lines of a command's output begin, in bytes. Expects D, n, lines (0: all).
# Status 44 where there is no such command; nothing is said where it has not begun.
file=$D/$n.out
if [ ! -e "$file" ]; then [ -e "$D/$n.cmd" ] || exit 44; exit 0; fi
if [ "$lines" = 0 ]; then echo 0; exit 0; fi
size=$(wc -c < "$file")
kept=$(head -c "$size" "$file" | tail -n "$lines" | wc -c)
echo $((size - kept))
