"""How machines are reached: network, firewall, keys, host keys, and the connection itself."""
