"""Devices of a node whose driver did not answer at first."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import engine_lab
import pytest
from engine_lab import EngineLab

from trainyard.engines.api import NodeSeen


@pytest.mark.slow  # an agent is started, and looked at twice
async def test_devices_are_found_when_their_driver_is_mended_after_we_met_the_node(
    lab: EngineLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def put(name: str, script: str) -> None:
        (tmp_path / "new").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "new").chmod(0o755)
        (tmp_path / "new").rename(tmp_path / name)

    put("podman", "echo podman version 4.3.1")  # so that nothing else is missing
    put("nvidia-smi", "echo 'NVIDIA-SMI has failed: no driver'; exit 9")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(engine_lab, "QUICK", replace(engine_lab.QUICK, refresh=0.1, equip=0.1))
    server = await lab.start()

    def newest() -> NodeSeen:
        return server.find(NodeSeen)[-1]  # type: ignore[return-value]

    assert newest().facts.devices == {}
    assert "no driver" in newest().facts.device_errors[0]
    put("nvidia-smi", "echo '0, Tesla V100-SXM2-16GB'")
    await server.until(lambda: newest().facts.devices == {"V100": (0,)})
    assert newest().facts.device_errors == ()
