# Prints the mode of $source on a line, then its bytes.
[ -e "$source" ] || exit 20
[ -d "$source" ] && exit 21
stat -L -c %a -- "$source" && exec cat -- "$source"
exit 22
