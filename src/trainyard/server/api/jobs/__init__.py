"""Routes about jobs: what they are, what they print, and what they are made from."""
