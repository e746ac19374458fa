"""Rows of users, workspaces, tokens and what belongs to them."""
