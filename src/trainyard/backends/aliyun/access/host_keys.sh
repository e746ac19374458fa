# Prints the public ssh host keys of this machine between two lines, as cloud-init prints them.
echo "-----BEGIN SSH HOST KEY KEYS-----"
cat "${TRAINYARD_ROOT:-}"/etc/ssh/ssh_host_*_key.pub
echo "-----END SSH HOST KEY KEYS-----"
