"""Machines on this computer: each a folder with its own home, loopback address and process tree."""

from trainyard.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
