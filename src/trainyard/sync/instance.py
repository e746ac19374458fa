"""`task.instance`: a machine's facts under the names that existing scripts use. They come from the backend."""

from __future__ import annotations

from trainyard.spec.machine import Machine, MachineState


class Instance:
    """What scripts ask of a machine. Calling it gives its id."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __call__(self) -> str:
        """The backend's id of the machine."""
        return self.machine.id

    def instance_id(self) -> str:
        """The backend's id of the machine."""
        return self.machine.id

    def instance_name(self) -> str:
        """The machine's name."""
        return self.machine.name

    def host_name(self) -> str:
        """The name by which the machine knows itself, or its name here."""
        return self.machine.details.get("hostname", self.machine.name)

    def instance_type(self) -> str:
        """The machine type that was asked for."""
        return self.machine.type

    def image_id(self) -> str:
        """The image that was asked for."""
        return self.machine.image

    def status(self) -> str:
        """Running, Stopped, Stopping, Pending."""
        return self.machine.state.value.capitalize()

    def is_running(self) -> bool:
        """Say whether it runs."""
        return self.machine.state is MachineState.RUNNING

    def is_stopped(self) -> bool:
        """Say whether it is stopped."""
        return self.machine.state is MachineState.STOPPED

    def is_stopping(self) -> bool:
        """Say whether it is being stopped."""
        return self.machine.state is MachineState.STOPPING

    def public_ip(self, index: int = 0) -> str:
        """The address by which this client reaches it."""
        return self.public_ips()[index]

    def public_ips(self) -> list[str]:
        """All public addresses."""
        return [self.machine.public_address or self.machine.address]

    def private_ip(self, index: int = 0) -> str:
        """The address by which the other tasks reach it."""
        return self.private_ips()[index]

    def private_ips(self) -> list[str]:
        """All private addresses."""
        return [self.machine.address]

    def key_pair_name(self) -> str:
        """Who made it, which the family writes as the key's name."""
        return self.machine.details.get("key_pair", self.machine.owner)

    def creation_time(self) -> str:
        """When it was made, as ISO 8601 in UTC."""
        return self.machine.created.strftime("%Y-%m-%dT%H:%MZ") if self.machine.created else ""

    def start_time(self) -> str:
        """When it was last started, as ISO 8601 in UTC."""
        return self.machine.started.strftime("%Y-%m-%dT%H:%MZ") if self.machine.started else ""

    def region_id(self) -> str:
        """Its region."""
        return self.machine.region

    def zone_id(self) -> str:
        """Its zone."""
        return self.machine.zone

    def vpc_id(self) -> str:
        """Its network, where the backend has such a thing."""
        return self.machine.details.get("vpc_id", "")

    def vswitch_id(self) -> str:
        """Its part of the network, likewise."""
        return self.machine.details.get("vswitch_id", "")

    def security_group_id(self, index: int = 0) -> str:
        """Its firewall group, likewise."""
        groups = self.security_group_ids()
        return groups[index] if groups else ""

    def security_group_ids(self) -> list[str]:
        """Its firewall groups, likewise."""
        return [word for word in self.machine.details.get("security_group_ids", "").split(",") if word]

    def tags(self) -> dict[str, str]:
        """Its labels."""
        return dict(self.machine.labels)

    def cpu(self) -> int:
        """How many processors it has."""
        return self.machine.cpus

    def memory(self) -> int:
        """Memory in MB."""
        return self.machine.memory_mib

    def gpu_amount(self) -> int:
        """How many accelerators it has."""
        return len(self.machine.devices)

    def gpu_spec(self) -> str:
        """The model of its accelerators."""
        return self.machine.devices[0].model if self.machine.devices else ""

    def instance_charge_type(self) -> str:
        """How it is paid; empty where nothing is."""
        return self.machine.details.get("instance_charge_type", "")

    def internet_charge_type(self) -> str:
        """How its traffic is paid; empty where nothing is."""
        return self.machine.details.get("internet_charge_type", "")

    def internet_max_bandwidth_in(self) -> int:
        """Mbit/s; 0 where it is not limited."""
        return int(self.machine.details.get("internet_max_bandwidth_in", "0"))

    def internet_max_bandwidth_out(self) -> int:
        """Mbit/s; 0 where it is not limited."""
        return int(self.machine.details.get("internet_max_bandwidth_out", "0"))

    def serial_number(self) -> str:
        """The hardware's serial number, where known."""
        return self.machine.details.get("serial_number", "")

    def vlan_id(self) -> str:
        """Its VLAN, where known."""
        return self.machine.details.get("vlan_id", "")

    def deployment_set_id(self) -> str:
        """Its deployment set, where known."""
        return self.machine.details.get("deployment_set_id", "")

    def request_id(self) -> str:
        """The request that described it, where known."""
        return self.machine.details.get("request_id", "")
