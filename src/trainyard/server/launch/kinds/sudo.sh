#!/bin/sh
# What `sudo` is in a task: the platform's manual tells people to write `sudo -E bash -c '...'`, and a task may not become
# anybody else. It has every right over its own files, so the command runs as it is. Where the node or the image has a
# sudo that asks for nothing, that is taken.
own=${0%/*}
if [ "$(id -u)" != 0 ]; then
    for folder in /usr/local/bin /usr/bin /bin; do
        if [ "$folder" != "$own" ] && [ -x "$folder/sudo" ] && "$folder/sudo" -n true 2>/dev/null; then
            exec "$folder/sudo" "$@"
        fi
    done
fi
while [ $# -gt 0 ]; do
    case $1 in
    --)
        shift
        break
        ;;
    --user | --group | --prompt | --chdir | --chroot | --host | --role | --type | --other-user | -[!-]*[ugpCDRTrtU] | -[ugpCDRTrtU])
        shift
        [ $# -eq 0 ] || shift
        ;;
    -l | --list | -v | --validate | -k | -K | --reset-timestamp | --remove-timestamp)
        [ $# -gt 1 ] || exit 0
        shift
        ;;
    -*) shift ;;
    [A-Za-z_]*=*)
        export "$1"
        shift
        ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || set -- "${SHELL:-/bin/sh}"
exec "$@"
