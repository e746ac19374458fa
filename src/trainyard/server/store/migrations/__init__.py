"""How the tables came to be as they are, one file a change; `upgrade.py` walks a database through them.

A new database is made from tables.py at once: a test compares the two ways.
"""

# The newest revision; a test compares it with the files.
HEAD = "0008"
