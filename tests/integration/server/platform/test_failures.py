"""A job that fails is explained by its exit code and its log, to who asks."""

from __future__ import annotations

import time

import pytest

from platforms import platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]  # a platform of its own


def failed(up, command: str, **more: object) -> dict:
    job = up.call("POST", "/api/v1/jobs", {"name": "bad", "command": command, **more})["id"]
    until = time.monotonic() + 60
    while up.call("GET", f"/api/v1/jobs/{job}")["state"] != "failed":
        assert time.monotonic() < until
        time.sleep(0.1)
    return up.call("GET", f"/api/v1/jobs/{job}/explanation")


def test_a_failure_is_explained_when_somebody_asks(tmp_path, capfd):
    with platform(tmp_path) as up:
        said = failed(up, "python3 -c 'import torchh'")
        assert said["diagnosis"]["code"] == "module_missing"
        assert "torchh" in said["diagnosis"]["line"]
        roles = [{"name": "worker", "replicas": 2, "cpu": 0.1}]
        command = "[ $TRAINYARD_RANK = 1 ] && no-such-command; sleep 0.5; echo 'ValueError: later'; exit 1"
        said = failed(up, command, roles=roles)
        assert (said["diagnosis"]["code"], said["diagnosis"]["task"]) == ("command_missing", "worker-1")
        up.call("POST", "/api/v1/storages", {"name": "gone", "source": "/no/such/folder", "target": "/mnt/x"})
        said = failed(up, "true", mounts=[{"source": "gone"}])["diagnosis"]
        assert (said["code"], said["meaning"]) == ("storage_refused", "")  # and no word of a command
        good = up.call("POST", "/api/v1/jobs", {"name": "good", "command": "true"})["id"]
        assert up.call("GET", f"/api/v1/jobs/{good}/explanation")["diagnosis"] is None
