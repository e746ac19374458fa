"""Launches machines: plans the request, finds zones with stock, and prepares what each machine boots with."""
