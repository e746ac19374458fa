"""Secrets: kept sealed in the database, given to jobs that name them, and shown to nobody."""
