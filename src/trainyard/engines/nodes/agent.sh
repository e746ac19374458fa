# Run the program of ours on a node. POSIX sh. Arguments: the node's folder (absolute, or from the home), the program's
# file in it, and what the program is asked for.
# Statuses: 95 the program is not there yet, 96 there is no python3, 97 it is too old, 98 there can be no folder.

case $1 in
/*) root=$1 ;;
*) root=$HOME/$1 ;;
esac
file=$root/$2
verb=$3
shift 3
# What a server that itself runs inside a task has in its environment must not mark the tasks of others.
unset TRAINYARD_MARK
command -v python3 >/dev/null 2>&1 || exit 96
if [ ! -f "$file" ]; then
    python3 -ISc 'import sys; sys.exit(sys.version_info < (3, 8))' || exit 97
    (umask 077 && mkdir -p "$root") || exit 98
    rm -f "$root/reserve" # on a full disk this is the room for the new program; the agent takes it again
    exit 95
fi
exec python3 -IS "$file" "$verb" "$root" "$@"
