"""Commands for the platform itself: login, nodes, pools, quotas, workspaces and costs."""
