"""The Yard behind this package: Alibaba Cloud unless told otherwise, logs under /fastgpu/runs."""

from __future__ import annotations

from trainyard.sync import Yard

yard = Yard(backend="aliyun", logdir_root="/fastgpu/runs")
