#!/bin/sh
# mount of a machine whose root may not mount: a file system of the emulated NAS is a folder that all machines share, so
# a link to it takes the place of the mount point. Everything else is left to the real one.
kind='' source='' target='' skip=''
for word; do
    if [ -n "$skip" ]; then
        [ "$skip" != t ] || kind=$word
        skip=''
        continue
    fi
    case $word in
        -t | --types) skip=t ;;
        -o | --options) skip=o ;;
        -t*) kind=${word#-t} ;;
        -*) ;;
        *) if [ -z "$source" ]; then source=$word; else target=$word; fi ;;
    esac
done
case $kind in nfs | nfs4) ;; *) exec "$(command -p -v mount)" "$@" ;; esac
folder=/run/trainyard/nas/${source%%:*}${source#*:}
folder=${folder%/}
if [ ! -d "$folder" ]; then
    echo "mount.nfs: Failed to resolve server ${source%%:*}: Name or service not known" >&2
    exit 32
fi
target=${target%/}
if [ -L "$target" ]; then
    rm -f "$target"
elif ! rmdir "$target" 2>/dev/null; then
    echo "mount.nfs: mount point $target is missing, or not empty" >&2
    exit 32
fi
ln -s "$folder" "$target"
