#!/bin/sh
# mountpoint of a machine whose root may not mount (see mount.sh).
for target; do :; done
case $(readlink "${target%/}") in /run/trainyard/nas/*) exit 0 ;; esac
exec "$(command -p -v mountpoint)" "$@"
