"""Verbs about the platform's jobs, and what jobs are made from."""
