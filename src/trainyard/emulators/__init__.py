"""Clouds on loopback: what a provider answers, given by this machine."""
