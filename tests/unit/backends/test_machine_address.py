"""What is kept of a machine so that it can be reached again."""

from __future__ import annotations

from trainyard.backends.machine_address import pack, unpack
from trainyard.spec.machine import Machine, MachineState


def test_a_machine_can_be_reached_again_from_what_was_kept_of_it():
    machine = Machine(
        name="a-1", id="i-1", backend="aliyun", state=MachineState.RUNNING, address="10.0.0.1", user="root",
        details={"ssh_port": "2222", "host_key": "ssh-ed25519 AAAA", "password": "never kept"},
    )  # fmt: skip
    kept = pack(machine)
    again = unpack(kept, backend="aliyun", name="other")
    assert (again.name, again.id, again.address, again.user) == ("a-1", "i-1", "10.0.0.1", "root")
    assert again.details == {"ssh_port": "2222", "host_key": "ssh-ed25519 AAAA"}
    assert all(kept.values()), "what is not known is not kept"
