"""Backends: where machines come from. A provider's own terms stay inside its package."""
