"""Verbs for people: permission, validation, intent and its event in one transaction, then a hint. Loops act on it."""
