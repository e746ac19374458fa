"""Where the files of the platform are on a node, as its agent is told."""

from __future__ import annotations

from pathlib import Path

from trainyard.engines.api import Mount, NodeAddress, View
from trainyard.engines.nodes.sandbox_paths import view_on

DATA = Path("/srv/platform")
VIEW = View(
    mounts=(
        Mount(source="storages/users/ada", target="/a", options={"base": "storages/users", "create": "1"}),
        Mount(source="/sets", target="/b", options={"base": "/sets"}),
        Mount(source="nas:/export", target="/c", kind="nfs", options={"base": "nas:/"}),
    )
)


def test_files_of_the_platform_are_below_the_servers_folder_when_the_node_is_its_own_computer():
    found = view_on(VIEW, NodeAddress(name="local"), DATA)
    assert [(one["source"], one["options"]["base"]) for one in found["mounts"]] == [
        ("/srv/platform/storages/users/ada", "/srv/platform/storages/users"),
        ("/sets", "/sets"),
        ("nas:/export", "nas:/"),
    ]
    assert found["mounts"][0]["options"]["create"] == "1"
    assert found["hidden"] == ("/srv/platform",), "no task may see the server's own files"


def test_files_of_the_platform_are_below_the_nodes_folder_when_it_is_another_computer():
    found = view_on(VIEW, NodeAddress(name="gpu1", backend="ssh"), DATA)
    assert [one["source"] for one in found["mounts"]] == ["storages/users/ada", "/sets", "nas:/export"]
    assert found["hidden"] == ()
