"""Who there is: users, groups, workspaces, their members, and what people ask for."""
