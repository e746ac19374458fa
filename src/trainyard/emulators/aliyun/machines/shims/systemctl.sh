#!/bin/sh
# systemctl of a machine that has one service: ssh. Asking for it to restart makes it read its configuration and keys
# anew; connections stay.
verb='' units=''
for word; do
    case $word in
        -*) ;;
        *) if [ -z "$verb" ]; then verb=$word; else units="$units ${word%.service}"; fi ;;
    esac
done
init=1
[ -z "${TRAINYARD_ROOT-}" ] || read -r init rest <"$TRAINYARD_ROOT/run/trainyard/../init"

case $verb in
    daemon-reload | daemon-reexec | reset-failed | '') exit 0 ;;
    is-system-running) echo running && exit 0 ;;
    reboot | poweroff | halt) exec reboot ;;
esac
for unit in $units; do
    case $unit in
        ssh | sshd) ;;
        *) echo "Failed to $verb $unit.service: Unit $unit.service not found." >&2 && exit 5 ;;
    esac
    case $verb in
        restart | reload | reload-or-restart | try-restart | force-reload) kill -HUP "$init" ;;
        is-active | is-enabled | status) echo active ;;
    esac
done
