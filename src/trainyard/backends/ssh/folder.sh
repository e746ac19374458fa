# The machine's own folder under the home directory. POSIX sh.
#
#   remove NAME       it goes, whatever is in it
#   move OLD NEW      it gets the machine's new name; nothing where there is none, or where it was moved already

set -u
root=$HOME/.trainyard
case $1 in
remove) rm -rf "${root:?}/${2:?}" ;;
move)
    if [ -d "$root/$2" ] && [ ! -e "$root/$3" ]; then
        mv "$root/$2" "$root/$3"
    fi
    ;;
esac
exit 0
