"""Routes about what jobs run on: nodes, pools, quotas, storages, figures and costs."""
