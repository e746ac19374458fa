# Keeps a script that is too long for a command line; prints where.
umask 077
path=$(mktemp) && cat >"$path" && printf %s "$path"
