"""Routes about people: signing in, accounts, workspaces, and what was done by whom."""
