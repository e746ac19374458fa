"""The Yard behind this package: Alibaba Cloud unless told otherwise, logs under /fastgpu/runs."""

from __future__ import annotations

from trainyard.sync import Runtime

yard = Runtime(backend="aliyun", logdir_root="/fastgpu/runs")
