"""Verbs about the platform itself: signing in, nodes, pools, quotas, workspaces and costs."""
