"""The Runtime behind this package: Alibaba Cloud unless told otherwise, logs under /ncluster/runs."""

from __future__ import annotations

from trainyard.sync import Runtime

runtime = Runtime(backend="aliyun", logdir_root="/ncluster/runs")
