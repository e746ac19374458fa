# Enter a machine's place on a node, as gateway_remote.py does. POSIX sh. Expects place, from the home.
folder=$HOME/$place
HOME=$folder/home PYTHONUNBUFFERED=1
export HOME PYTHONUNBUFFERED
if [ -s "$folder/sockets" ]; then
    IFS= read -r TMUX_TMPDIR < "$folder/sockets"
    export TMUX_TMPDIR
fi
unset TMUX TMUX_PANE OLDPWD
mkdir -p "$HOME" && cd "$HOME" || exit 1
