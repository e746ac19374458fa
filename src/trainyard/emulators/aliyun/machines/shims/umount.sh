#!/bin/sh
# umount of a machine whose root may not mount (see mount.sh).
for target; do :; done
target=${target%/}
case $(readlink "$target") in /run/trainyard/nas/*) rm -f "$target" && exec mkdir "$target" ;; esac
exec "$(command -p -v umount)" "$@"
