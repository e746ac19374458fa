"""Transports: how programs reach one machine, locally, by ssh, or through the platform's server."""
