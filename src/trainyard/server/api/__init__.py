"""REST under /api/v1, one noun a file: parse, authenticate, call a service, render. No decision is made here.

The compatible REST of `dlc` is in dlc/; who may do what is auth/ and services/.
"""
