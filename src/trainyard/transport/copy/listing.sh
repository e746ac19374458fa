# Says what a download would bring. Lines of ours begin with $mark, since a login may print things.
#
#   source   a path, absolute or relative to the home directory
#   pattern  1: expand it and list the matches, each ended by NUL
cd || exit 1
LC_ALL=C
export LC_ALL

say() { printf '%s %s\n' "$mark" "$*"; }

if [ "$pattern" = 1 ] && [ ! -e "$source" ] && [ ! -h "$source" ]; then
    IFS=
    say matches
    for match in $source; do # unquoted on purpose: this is the expansion
        # `.*` stands for the folder itself and the one above it, too; nobody means those.
        case ${match##*/} in . | ..) continue ;; esac
        if [ -e "$match" ] || [ -h "$match" ]; then printf '%s\0' "$match"; fi
    done
    exit 0
fi
if [ ! -e "$source" ]; then
    say missing
    exit 0
fi
if find / -prune -printf '' 2>/dev/null; then exact=1; else exact=0; fi
if [ -d "$source" ]; then
    cd "$source" || exit 1
    if [ "$exact" = 1 ]; then
        say folder
        find . -printf '%y %m %s %T@ %p\0' | gzip -1
    else
        set -- $(du -sk .)
        say "rough folder $1"
    fi
elif [ "$exact" = 1 ]; then
    say file
    find -H "$source" -prune -printf '%y %m %s %T@ .\0' | gzip -1
else
    set -- $(du -skL "$source")
    say "rough file $1"
fi
