#!/bin/sh
# `service ssh restart` is `systemctl restart ssh`.
exec "${0%/*}/systemctl" "${2-status}" "${1-ssh}"
