"""The Runtime behind this package: Alibaba Cloud unless told otherwise, logs under /fastgpu/runs."""

from __future__ import annotations

from trainyard.sync import Runtime

runtime = Runtime(backend="aliyun", logdir_root="/fastgpu/runs")
