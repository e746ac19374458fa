"""Small helpers under the module name that the family's scripts may import them from."""

from __future__ import annotations

from trainyard.launch import gen_command_file, get_mpi_prefix

__all__ = ["gen_command_file", "get_mpi_prefix"]
