#!/bin/sh
# cloud-init of a machine whose UserData is run by its first process: `cloud-init status [--wait]`.
cloud=${TRAINYARD_ROOT-}/var/lib/cloud/instance
case " $* " in
    " status "*) ;;
    *) echo "cloud-init: only \`status\` is emulated" >&2 && exit 2 ;;
esac
case " $* " in
    *" --wait "* | *" -w "*) while [ ! -e "$cloud/boot-finished" ]; do sleep 0.1; done ;;
esac
result=running
[ ! -e "$cloud/boot-finished" ] || read -r result <"$cloud/result.txt"
echo "status: $result"
[ "$result" != error ]
