# Behind a script in a subshell: tell how it ended, then wait to be told what to become. Expects token. POSIX sh.
printf '\n%s %s\n' "$token" "$?"
IFS= read -r next && eval "$next"
