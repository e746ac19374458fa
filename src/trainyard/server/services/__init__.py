"""Verbs for people: permission, validation, intent and its event in one transaction, then a hint. Loops act on it."""

from trainyard.server.services.bundle import Services
from trainyard.server.services.context import Page
from trainyard.server.services.jobs import JobQuery

__all__ = ["JobQuery", "Page", "Services"]
