"""Rows of nodes, pools and storages."""
