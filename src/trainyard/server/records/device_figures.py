"""What the driver of a device said last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Figures = Mapping[str, Mapping[str, Any]]  # device → name → figure; "uuid" is a text
