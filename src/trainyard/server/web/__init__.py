"""The web server itself: where it listens, and what it takes from strangers. What it serves is in `api/`."""
