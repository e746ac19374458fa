"""What jobs run on: nodes, quotas, storages, and pools of machines that are bought."""
