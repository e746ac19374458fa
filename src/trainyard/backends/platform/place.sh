# Hold a machine's place on a node until the platform, or its user, wants it back. POSIX sh. $PLACE: its folder from the home.
# Beside it, by name in that folder:  home/ the machine's home   pid our process   sockets where its tmux listens
# released: "all" the machine goes for good, and its files with it; "one" likewise, but its job lives on without it.
set -u
place=$HOME/$PLACE
umask 077
mkdir -p "$place/home" || exit 73

leave() {
    trap '' TERM INT HUP
    if [ -s "$place/sockets" ]; then # whoever listens there ends with us
        IFS= read -r sockets < "$place/sockets"
        case $sockets in "$place"/tmux | /tmp/trainyard-"$(id -u)"-*) rm -rf "$sockets" ;; esac
        rm -f "$place/sockets"
    fi
    word=
    if [ -s "$place/released" ]; then read -r word < "$place/released"; fi
    if [ -n "$word" ]; then
        # Moved first: what still runs there writes into what is being removed, and not into something new.
        mv "$place" "$place.gone.$$" && rm -rf "$place.gone.$$"
        # By this status the platform knows it from one that was told to go.
        if [ "$word" = one ]; then mkdir -p "$place" && echo one >| "$place/released" && exit 0; fi
    fi
    exit 143
}

# A job that was paused comes back whole; a machine that had left it before leaves it again.
if [ -s "$place/released" ]; then leave; fi
trap leave TERM INT HUP
echo $$ >| "$place/pid"
while :; do
    sleep 86400 &
    wait $!
done
