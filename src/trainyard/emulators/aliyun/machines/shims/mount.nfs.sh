#!/bin/sh
# mount.nfs: a file system of the emulated NAS is a folder that all machines share.
source=$1 target=$2
server=${source%%:*} path=${source#*:}
folder=/run/trainyard/nas/$server
if [ ! -d "$folder" ]; then
    echo "mount.nfs: Failed to resolve server $server: Name or service not known" >&2
    exit 32
fi
if [ ! -d "$folder/$path" ]; then
    echo "mount.nfs: mounting $source failed, reason given by server: No such file or directory" >&2
    exit 32
fi
exec mount --bind "$folder/$path" "$target"
