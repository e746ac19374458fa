"""Rows of readings and of costs."""
