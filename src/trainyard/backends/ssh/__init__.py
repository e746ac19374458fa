"""Hosts that you can ssh to, as machines."""
