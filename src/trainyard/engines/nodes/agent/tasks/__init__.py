"""The tasks of a node: their folders, the supervisor of each, and what is done before a command begins."""
