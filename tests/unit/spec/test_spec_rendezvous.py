"""Host files and variables that scripts and the platform share."""

from __future__ import annotations

import json

import pytest

from trainyard.spec import rendezvous
from trainyard.spec.rendezvous import HostSlots

HOSTS = (HostSlots("10.0.0.1", 8), HostSlots(rendezvous.bracketed("fd00::1"), 4))


def test_every_launcher_reads_its_own_form_when_hosts_are_written():
    assert rendezvous.host_file(HOSTS[:1]) == "10.0.0.1 slots=8\n"
    assert rendezvous.hydra_host_file(HOSTS) == "10.0.0.1:8\n[fd00::1]:4\n"
    assert rendezvous.horovod_hosts(HOSTS) == "10.0.0.1:8,[fd00::1]:4"
    assert rendezvous.discovery_script(HOSTS[:1]) == "#!/bin/sh\necho 10.0.0.1:8\n"


@pytest.mark.parametrize(("devices", "cpus", "slots"), [(8, 96, 8), (0, 2.5, 2), (0, 0.5, 1), (0, 0, 1)])
def test_a_task_has_a_slot_for_each_device_or_else_for_each_processor(devices, cpus, slots):
    assert rendezvous.slots_of(devices, cpus) == slots


def test_tf_config_is_json_when_a_name_has_quotes():
    cluster = rendezvous.tf_cluster({'a"b': ["h:1"]})
    assert json.loads(rendezvous.tf_config(cluster, 'a"b', 0, environment="cloud")) == {
        "cluster": {'a"b': ["h:1"]},
        "task": {"type": 'a"b', "index": 0},
        "environment": "cloud",
    }
    assert json.loads(rendezvous.tf_config(cluster, "worker", 1)) == {
        "cluster": {'a"b': ["h:1"]},
        "task": {"type": "worker", "index": 1},
    }


def test_torchrun_gets_what_programs_get_when_it_has_defaults_of_its_own():
    master = rendezvous.master_variables("h", 1)
    assert rendezvous.torchrun_master_variables(master) == {"PET_MASTER_ADDR": "h", "PET_MASTER_PORT": "1"}
    assert (
        rendezvous.torchrun_variables(2, 1, 8)["PET_NNODES"] == rendezvous.launcher_variables(2, 1)["NNODES"]
    )
