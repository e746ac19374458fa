"""Access to machines: network, firewall, keys, host keys, and the connection."""
