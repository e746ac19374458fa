"""Machines that the platform's server gives out: places in its queue, reached through it."""
