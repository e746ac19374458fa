# The newest commands of a session, oldest first. Expects D (folder) and count.
#     "c NUMBER STATUS FIRST-LINE" for each, STATUS - while it has none; then "s FILE SIZE TIME" for their files.
cd "$D" 2>/dev/null || exit 0
last=0
if [ -s last ]; then read -r last < last; fi
n=$((last - count + 1))
if [ "$n" -lt 1 ]; then n=1; fi
set --
while [ "$n" -le "$last" ]; do
    if [ -e "$n.cmd" ]; then
        status=- text=
        if [ -s "$n.status" ]; then read -r status < "$n.status"; fi
        IFS= read -r text < "$n.cmd"
        printf 'c %s %s %.500s\n' "$n" "$status" "$text"
        for file in "$n.cmd" "$n.out" "$n.status"; do
            if [ -e "$file" ]; then set -- "$@" "$file"; fi
        done
    fi
    n=$((n + 1))
done
if [ "$#" -gt 0 ]; then stat -c 's %n %s %Y' "$@"; fi
