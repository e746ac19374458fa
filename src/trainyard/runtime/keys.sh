# Let the machines of a job log in to each other. POSIX sh, set in front by setup.py:
#   job      the job's name
#   verb     make: a key pair of this machine's own (its private key never leaves it); prints what others need to know
#            link: stdin holds the others: "key LINE", "known LINE" and "config LINE", each written between markers
#            drop: take back all of it
# Other lines of the person's files stay as they are. A file is replaced whole or not at all.
set -eu
umask 077
LC_ALL=C
export LC_ALL
folder=$HOME/.trainyard/keys/$job
begin="# >>> trainyard $job >>>"
end="# <<< trainyard $job <<<"

# Homes may be shared by several machines: one writes at a time.
lock() {
    mkdir -p "$HOME/.trainyard/keys"
    if command -v flock >/dev/null 2>&1; then
        exec 9>"$HOME/.trainyard/keys/.lock"
        flock 9
    fi
}

# Replace our block in file $1 by the lines on stdin: at the beginning (`first`) or at the end (`last`), none where
# there are no lines. ssh takes the first value it finds, so our block of the configuration stands first.
put_block() {
    file=$1 place=$2 mode=600
    if [ -L "$file" ]; then file=$(readlink -f "$file"); fi
    if [ -e "$file" ]; then mode=$(stat -c %a "$file" 2>/dev/null || echo 600); fi
    new=$file.trainyard.$$
    trap 'rm -f "$new" "$new.block"' EXIT
    cat >"$new.block"
    {
        if [ -s "$new.block" ] && [ "$place" = first ]; then cat "$new.block"; fi
        # A marker that is never closed must not swallow the rest of the file: then only the marker goes.
        if [ -e "$file" ]; then
            awk -v begin="$begin" -v end="$end" '
                !inside && $0 == begin { inside = 1; held = ""; next }
                inside && $0 == end { inside = 0; next }
                inside { held = held $0 "\n"; next }
                { print }
                END { if (inside) printf "%s", held }' "$file"
        fi
        if [ -s "$new.block" ] && [ "$place" = last ]; then cat "$new.block"; fi
    } >"$new"
    if cmp -s "$new" "$file" 2>/dev/null || { [ ! -e "$file" ] && [ ! -s "$new" ]; }; then
        rm -f "$new"
    else
        chmod "$mode" "$new"
        mv -f "$new" "$file"
    fi
    rm -f "$new.block"
}

block() {
    lines=$(sed -n "s/^$1 //p" "$input")
    if [ -n "$lines" ]; then printf '%s\n%s\n%s\n' "$begin" "$lines" "$end"; fi
}

case $verb in
    make)
        command -v ssh-keygen >/dev/null 2>&1 || { echo no-ssh-keygen; exit 0; }
        lock
        mkdir -p "$folder"
        # Both halves or none: a pair whose making was interrupted is made anew.
        if [ ! -s "$folder/id_ed25519" ] || [ ! -s "$folder/id_ed25519.pub" ]; then
            rm -f "$folder/new" "$folder/new.pub"
            ssh-keygen -q -t ed25519 -N '' -C "trainyard-$job" -f "$folder/new" </dev/null >&2
            mv -f "$folder/new.pub" "$folder/id_ed25519.pub"
            mv -f "$folder/new" "$folder/id_ed25519"
        fi
        echo "user $(id -un)"
        echo "connection ${SSH_CONNECTION:-}"
        echo "key $(cat "$folder/id_ed25519.pub")"
        ;;
    link)
        lock
        mkdir -p "$folder" "$HOME/.ssh"
        chmod 700 "$HOME/.ssh"
        input=$folder/.input.$$
        cat >"$input"
        sed -n 's/^known //p' "$input" >"$folder/known_hosts.$$"
        mv -f "$folder/known_hosts.$$" "$folder/known_hosts"
        block key | put_block "$HOME/.ssh/authorized_keys" last
        # The places of our own files are known here only; quotes, because a home may hold a blank.
        block config | sed "s|@folder@|$(printf %s "$folder" | sed 's/%/%%/g; s/[\\&|]/\\&/g')|" | put_block "$HOME/.ssh/config" first
        rm -f "$input"
        ;;
    drop)
        lock
        for file in authorized_keys config; do
            if [ -e "$HOME/.ssh/$file" ]; then
                if [ "$file" = config ]; then place=first; else place=last; fi
                put_block "$HOME/.ssh/$file" "$place" </dev/null
            fi
        done
        rm -rf "$folder"
        ;;
esac
