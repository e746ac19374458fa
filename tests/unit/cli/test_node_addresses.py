from __future__ import annotations

import pytest

from trainyard.cli.platform.nodes import _device_ips
from trainyard.lib.errors import InvalidError


def test_addresses_of_devices_are_read_when_each_has_its_number():
    assert _device_ips(["0=192.168.10.1", "10=fd00::1"]) == {"0": "192.168.10.1", "10": "fd00::1"}


def test_addresses_are_taken_away_when_there_is_to_be_none():
    assert _device_ips(["none"]) is None


@pytest.mark.parametrize("wrong", ["192.168.10.1", "x=192.168.10.1", "=1"])
def test_an_address_is_refused_when_its_device_has_no_number(wrong):
    with pytest.raises(InvalidError, match="no address of a device"):
        _device_ips([wrong])
