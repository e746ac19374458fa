"""What runs workloads: whole gangs in, observations out."""
