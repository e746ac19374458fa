"""Who runs next, where, and why not yet: pure decisions, no I/O, no clock, no randomness."""
