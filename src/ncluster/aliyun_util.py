"""The cloud's place names, under the module name that the family's scripts may import them from."""

from __future__ import annotations

from ncluster._door import runtime

get_region = runtime.get_region
get_zone = runtime.get_zone

__all__ = ["get_region", "get_zone"]
