"""The ssh backend: hosts that you can log in to by ssh, used as machines."""
