"""A lab for tests of the ssh backend: real sshds, and laptops (clients) with an inventory of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sshd import Sshd
from trainyard import settings
from trainyard.backends.ssh import inventory
from trainyard.backends.ssh.backend import SshBackend
from trainyard.backends.ssh.inventory import Host
from trainyard.settings import Settings


def entry(name: str, sshd: Sshd, lease_dir: Path) -> Host:
    """The inventory entry of a test host."""
    return Host(
        name=name,
        address=sshd.address,
        port=sshd.port,
        user=sshd.user,
        key=(str(sshd.client_key),),
        known_hosts=str(sshd.known_hosts),
        ssh_config="/dev/null",
        lease_dir=str(lease_dir),
    )


class Lab:
    """Hosts h0, h1 … on these sshds; leases are kept in one folder, as on one host with several ports."""

    def __init__(self, folder: Path, sshds: Sequence[Sshd]) -> None:
        self.folder = folder
        self.sshds = list(sshds)
        self.lease_dir = folder / "leases 中文 $(x)"
        self._backends: list[SshBackend] = []

    def entry(self, index: int, **more: object) -> Host:
        """Host number `index` for an inventory."""
        return replace(entry(f"h{index}", self.sshds[index], self.lease_dir), **more)  # type: ignore[arg-type]  # passed through

    def laptop(
        self, owner: str = "alice@mac", hosts: Sequence[Host] | None = None, **environ: str
    ) -> Settings:
        """The settings of one person's laptop; asked again, the same laptop."""
        user, _, client = owner.partition("@")
        home = self.folder / f"laptop-{owner}"
        home.mkdir(exist_ok=True)
        path = home / "hosts.toml"
        if hosts is not None or not path.exists():
            path.unlink(missing_ok=True)
            for host in hosts if hosts is not None else [self.entry(i) for i in range(len(self.sshds))]:
                inventory.add(path, host)
        variables: Mapping[str, str] = {
            **os.environ,
            "TRAINYARD_HOME": str(home),
            "TRAINYARD_STOP_GRACE": "1",
            **environ,
        }
        return replace(settings.load(variables), user=user, client=client)

    def backend(self, owner: str = "alice@mac", hosts: Sequence[Host] | None = None) -> SshBackend:
        """A client on that laptop; closed with the lab."""
        backend = SshBackend.from_settings(self.laptop(owner, hosts))
        self._backends.append(backend)
        return backend

    async def aclose(self) -> None:
        """Close all clients and end what is left on the hosts."""
        for backend in self._backends:
            await backend.aclose()
