"""Rows of jobs, and of what jobs are made from."""
