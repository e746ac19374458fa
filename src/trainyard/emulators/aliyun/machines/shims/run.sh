# Runs a script of Cloud Assistant inside the machine: $1 is what stands in front of the machine's paths, $2 the number
# of the invocation, $3 the working directory, $4 the account. Why it could not be run is left in the file N.problem.
root=$1 number=$2 folder=$3 user=$4
jobs=$root/run/trainyard/jobs
fail() {
    echo "$1" >"$jobs/$number.problem"
    exit 1
}
cd "$folder" 2>/dev/null || fail DirectoryNotExists
if [ "$user" = root ]; then
    set --
else
    group=$(id -g "$user" 2>/dev/null) || fail AccountNotExists
    set -- setpriv --reuid "$user" --regid "$group" --init-groups --reset-env --
fi
case $(head -c 2 "$jobs/$number.sh") in
    '#!') exec "$@" "$jobs/$number.sh" ;;
    *) exec "$@" sh "$jobs/$number.sh" ;;
esac
