"""The compatible face; being built."""
