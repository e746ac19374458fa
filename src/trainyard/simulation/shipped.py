"""The shipped traces by name, for `trainyard simulate --trace NAME`.

Claims about policies are about exactly these, and tests hold them to it. Only names and numbers live here, so that asking for help
loads nothing; what the traces are made of is traces.py's, and the clusters are files under data/.
"""

from __future__ import annotations

TRACES = ("philly", "helios", "pai")
CLUSTERS = ("small", "medium", "large")
CLUSTER = "small"
DAYS = 7.0
LOAD = 0.9
SEED = 1
