#!/bin/sh
# reboot, poweroff, shutdown and halt: the machine ends, and the emulator boots it again, as a machine that crashed.
[ -z "${TRAINYARD_ROOT-}" ] || { echo "this machine can only be restarted from outside" >&2 && exit 1; }
kill -TERM 1
