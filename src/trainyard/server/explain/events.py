"""What happened, in the language of whoever reads it."""

from __future__ import annotations

from trainyard.messages.catalogue import sentence_of
from trainyard.spec.events import Event


def event_sentence(event: Event, language: str) -> str:
    """The sentence of an event; its own where the catalogue has none, as for what an older version has written."""
    return sentence_of(event.code, {**(event.data or {}), "actor": event.actor}, event.message, language)
