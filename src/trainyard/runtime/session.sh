# The supervisor of one session, the program of a tmux pane: keeps a shell alive and shows what it does.
#     sh session.sh FOLDER FILES      (FILES: where this file and its companions are)
# POSIX sh. Job control is on, so the shell gets the terminal and Ctrl-C reaches only the command that runs.
__ty_dir=$1
TRAINYARD_SESSION=$__ty_dir TRAINYARD_SESSION_FILES=$2 TRAINYARD_SESSION_PATH=$PATH
export TRAINYARD_SESSION TRAINYARD_SESSION_FILES TRAINYARD_SESSION_PATH
cd "$HOME" || exit 1
. "$TRAINYARD_SESSION_FILES/session_lib.sh"
set -m
# Nothing typed here reaches a command, so do not echo it; Ctrl-S must not be able to stop the session.
stty -echo -ixon susp undef 2>/dev/null

# End a shell, and with it what it runs. A zombie that nobody collects has no exe.
end_shell() {
    kill -HUP "$1" 2>/dev/null # an interactive shell passes it on
    tries=0
    while [ -e "/proc/$1/exe" ]; do
        tries=$((tries + 1))
        if [ "$tries" -gt 20 ]; then kill -KILL "$1" 2>/dev/null; fi
        sleep 0.1
    done
}

# An earlier supervisor may have died a moment ago. Its guard, which holds `life`, must be through before it could take
# our shell for that one's; and of two shells at one FIFO neither would get whole lines.
guard= tries=0
if [ -s "$__ty_dir/guard" ]; then IFS= read -r guard < "$__ty_dir/guard"; fi
while [ -n "$guard" ] && [ "$tries" -lt 80 ] && [ "/proc/$guard/fd/6" -ef "$__ty_dir/life" ]; do
    tries=$((tries + 1))
    sleep 0.05
done
shell=
if [ -s "$__ty_dir/shell" ]; then IFS= read -r shell < "$__ty_dir/shell"; fi
if [ -n "$shell" ] && [ "/proc/$shell/fd/0" -ef "$__ty_dir/in" ]; then end_shell "$shell"; fi

exec 3<> "$__ty_dir/in" 4<> "$__ty_dir/show"
if [ -e "$__ty_dir/viewer.idle" ] || [ -e "$__ty_dir/shell" ]; then rm -f "$__ty_dir/viewer.idle" "$__ty_dir/shell"; fi
true >| "$__ty_dir/current"

# Commands that were waiting or running when an earlier supervisor ended can never end themselves.
for file in "$__ty_dir"/*.cmd; do
    number=${file##*/} number=${number%.cmd}
    if [ -e "$__ty_dir/$number.cmd" ] && [ ! -s "$__ty_dir/$number.status" ]; then __ty_finish "$number" lost; fi
done
__ty_keep_room
printf '%s\n' "$$" >| "$__ty_dir/pid"

# Print command N and what it wrote, following it while it runs.
show() {
    lines=0
    while IFS= read -r line || [ -n "$line" ]; do
        if [ "$lines" = 0 ]; then mark='$'; else mark='>'; fi
        printf '\033[1;32m%s\033[0m \033[1m%.500s\033[0m\n' "$mark" "$line"
        lines=$((lines + 1))
        if [ "$lines" = 20 ]; then printf '> …\n'; break; fi
    done < "$__ty_dir/$1.cmd"
    if [ ! -s "$__ty_dir/$1.status" ]; then sleep 0.2; fi
    if [ -s "$__ty_dir/$1.status" ]; then
        # A finished command with a huge output is shown by its end.
        if [ -s "$__ty_dir/$1.short" ]; then
            while IFS= read -r line; do printf '%s\n' "$line"; done < "$__ty_dir/$1.short"
            printf '%s' "$line"
        elif [ -s "$__ty_dir/$1.out" ]; then tail -c 1000000 "$__ty_dir/$1.out"; fi
    else
        tail -c +1 -f "$__ty_dir/$1.out" 2>/dev/null &
        while [ ! -s "$__ty_dir/$1.status" ]; do wait_for_news "$1.status"; done
        sleep 0.3 # lets tail print what was written last
        kill $! 2>/dev/null
        wait $! 2>/dev/null
    fi
    IFS= read -r ended < "$__ty_dir/$1.status"
    if [ "$ended" != 0 ]; then printf '\033[31m[status %s]\033[0m\n' "$ended"; fi
}

# Sleep until the session writes to `show`, unless FILE has content already or a newer command was started.
wait_for_news() {
    echo idle >| "$__ty_dir/viewer.idle"
    if [ -n "${1:-}" ] && [ -s "$__ty_dir/$1" ]; then return; fi
    if [ -z "${1:-}" ] && newest && [ "$newest" != "$shown" ]; then return; fi
    read -r _ <&4
    true >| "$__ty_dir/viewer.idle"
}

newest() {
    newest=0
    if [ -s "$__ty_dir/started" ]; then IFS= read -r newest < "$__ty_dir/started"; fi
}

viewer() {
    set +m
    newest
    shown=$newest
    while :; do
        wait_for_news
        newest
        while [ "$shown" -lt "$newest" ]; do
            shown=$((shown + 1))
            if [ -e "$__ty_dir/$shown.out" ]; then show "$shown"; fi
        done
    done
}

viewer &
viewer_pid=$!
# Showing comes after doing where processors are few.
renice -n 5 -p "$viewer_pid" >/dev/null 2>&1

# Waits for the supervisor's death, however it came: a closed tmux, kill -9. The write end of `life` is the supervisor's
# alone, so its death is an end of file. Then nothing of the session may live on, and nobody may wait for it.
guard() {
    set +m
    trap '' HUP # the terminal may go as well
    exec 6< "$__ty_dir/life"
    read -r _ <&6
    kill -TERM "-$viewer_pid" 2>/dev/null
    shell= number= pid=
    IFS= read -r shell < "$__ty_dir/shell"
    IFS= read -r number < "$__ty_dir/current"
    IFS= read -r pid < "$__ty_dir/pid"
    if [ "$pid" != "$$" ]; then exit 0; fi # another supervisor did not wait for us, and has done the rest
    if [ -n "$shell" ]; then kill -HUP "$shell" 2>/dev/null; fi
    if [ -n "$number" ]; then __ty_finish "$number" lost; fi
    rm -f "$__ty_dir/pid"
    if [ -n "$shell" ]; then end_shell "$shell"; fi
    exit 0
}
guard 3>&- 4>&- &
printf '%s\n' "$!" >| "$__ty_dir/guard"
exec 5> "$__ty_dir/life"
# Ctrl-C belongs to the command; between two commands it must not end the supervisor.
trap : INT

while :; do
    if command -v bash >/dev/null 2>&1; then
        bash --noediting --rcfile "$TRAINYARD_SESSION_FILES/session_rc.sh" -i <&3 3>&- 4>&- 5>&- 2>/dev/null
    else
        ENV=$TRAINYARD_SESSION_FILES/session_rc.sh sh -i <&3 3>&- 4>&- 5>&- 2>/dev/null
    fi
    status=$?
    number=
    IFS= read -r number < "$__ty_dir/current"
    if [ -n "$number" ]; then
        __ty_finish "$number" "$status"
        # The disk is full; without room no other command could be run either.
        while [ -n "$__ty_unnoted" ]; do sleep 1; __ty_note_late; done
    else
        sleep 0.2 # a shell that ends while idle, again and again, must not spin
    fi
    TRAINYARD_RESTORE=1
    export TRAINYARD_RESTORE
done
