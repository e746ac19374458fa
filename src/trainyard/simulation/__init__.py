"""A discrete-event simulator over the scheduler: what would happen on this cluster, with these jobs."""
