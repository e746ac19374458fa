# Puts a file where Cloud Assistant was asked to. Before these lines stand name, folder, mode, owner, group, overwrite
# and content (base64) as variables. Leaves with 11 where the file is there and may not be overwritten, 12 where the
# owner or group does not exist.
set -eu
target=$folder/$name
if [ "$overwrite" != true ] && [ -e "$target" ]; then
    exit 11
fi
mkdir -p -- "$folder"
temporary=$(mktemp "$folder/.sendfile.XXXXXX")
trap 'rm -f -- "$temporary"' EXIT
printf %s "$content" | base64 -d > "$temporary"
chmod "$mode" "$temporary"
if [ "$owner:$group" != root:root ]; then
    chown "$owner:$group" "$temporary" || exit 12
fi
mv -f -- "$temporary" "$target"
