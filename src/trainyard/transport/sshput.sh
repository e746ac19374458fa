# Writes standard input to $target with mode $mode, once all $size bytes have come; $part is beside it.
[ -d "$target" ] && exit 21
folder=${target%/*}
[ "$folder" = "$target" ] && folder=.
[ -d "${folder:-/}" ] || exit 20
trap 'rm -f -- "$part"' EXIT
trap 'exit 1' HUP INT TERM PIPE
(umask 077 && cat >"$part") || exit 22
[ "$(wc -c <"$part")" -eq "$size" ] || exit 23
chmod "$mode" "$part" && mv -f -- "$part" "$target" || exit 22
