"""What a node's probe finds, as the server keeps it."""

from __future__ import annotations

import pytest

from trainyard.engines.nodes.agent import node_probe
from trainyard.engines.nodes.agent_program import facts_of
from trainyard.spec.ascend import entry_addresses

WELCOME = {"disk": (1, 2)}


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        (
            "address_0=192.168.10.1\nnetmask_0=255.255.255.0\naddress_1=192.168.20.1\n",
            {0: "192.168.10.1", 1: "192.168.20.1"},
        ),
        ("", {}),
    ],
)
def test_addresses_of_npus_are_kept_when_the_driver_has_written_them(tmp_path, monkeypatch, text, addresses):
    path = tmp_path / "hccn.conf"
    path.write_text(text)
    monkeypatch.setattr(node_probe, "HCCN", str(path))
    monkeypatch.setenv("SSH_CONNECTION", "127.0.0.1 1 127.0.0.1 2")  # no route is looked up then
    facts = facts_of(node_probe.facts(), WELCOME, skew=0.0)
    assert entry_addresses({"device_ips": facts.device_ips}) == addresses
    assert not [error for error in facts.device_errors if "hccn" in error]


def test_a_node_is_still_one_when_its_file_makes_no_sense():
    facts = facts_of({"hccn": "address_0='\"'", "device_errors": ["npu-smi: x"]}, WELCOME, skew=0.0)
    assert facts.device_ips == {}
    assert facts.device_errors[0] == "npu-smi: x"
    assert "no address for device 0" in facts.device_errors[1]
