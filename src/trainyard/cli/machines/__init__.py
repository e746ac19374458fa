"""Verbs about machines, whichever backend they come from."""
