# Where the last lines of a command's output begin, in bytes. Expects D, n, lines; status 44 where nothing was printed.
file=$D/$n.out
if [ ! -e "$file" ]; then exit 44; fi
size=$(wc -c < "$file")
kept=$(head -c "$size" "$file" | tail -n "$lines" | wc -c)
echo $((size - kept))
