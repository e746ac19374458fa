"""The local backend: machines on this computer, each a folder with its own home, loopback address and processes."""

from trainyard.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
