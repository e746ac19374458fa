"""Rows to records and back, one noun a file: plain functions over an open transaction. The only place with SQL."""
