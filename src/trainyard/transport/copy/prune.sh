# Lists a folder (folders, an empty name, everything else), or removes the names that come on standard input.
cd || exit 1
cd "$base" || exit 1
if [ "$step" = list ]; then
    printf '%s\n' "$mark"
    find . -type d -print0
    printf '\0'
    find . -mindepth 1 ! -type d -print0
else
    xargs -0 rm -rf --
fi
