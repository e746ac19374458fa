#!/bin/sh
# Run a program, and tell a crash of its own at exit from a failure: `own_crash.sh PROGRAM ...`.
#
# Libraries of some frameworks crash when their interpreter goes, after all work is done. A program that has done its work makes
# the file that DONE names. Whatever ends it by a signal after that is said, and counts as success; anything before is a failure.
DONE=$(mktemp -u "${TMPDIR:-/tmp}/done.XXXXXX")
export DONE
"$@"
status=$?
if [ -e "$DONE" ]; then
    rm -f "$DONE"
    case $status in
        0) ;;
        129 | 13[0-9] | 14[0-9] | 15[0-9] | 16[0-4])
            echo "the program had done its work when it crashed by itself with status $status"
            status=0
            ;;
    esac
fi
exit "$status"
