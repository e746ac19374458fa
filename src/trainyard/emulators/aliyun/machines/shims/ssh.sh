#!/bin/sh
# ssh where a machine shares this computer's files: the account's home is not the machine's, so the machine's own keys
# and known hosts are named to it.
exec "$(command -p -v ssh)" -F "$TRAINYARD_ROOT/run/trainyard/ssh_config" "$@"
