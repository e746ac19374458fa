"""Commands for machines of all backends."""
