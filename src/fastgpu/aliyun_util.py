"""The cloud's place names, under the module name that the family's scripts may import them from."""

from __future__ import annotations

from fastgpu._door import yard

get_region = yard.get_region
get_zone = yard.get_zone

__all__ = ["get_region", "get_zone"]
