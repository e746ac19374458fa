"""Which folders a job's tasks see, and what of it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.engines.api import FIRST_TASK_USER
from trainyard.engines.nodes.agent.sandbox import sandbox_user
from trainyard.lib.errors import InvalidError
from trainyard.server.cluster.storages import DEFAULTS, check
from trainyard.server.launch import mounts, sandbox_spec
from trainyard.server.launch.sandbox_spec import Login, SandboxFacts, registry_of, view_of
from trainyard.server.records.nodes import NodeRecord, can_run_images
from trainyard.server.records.storages import StorageRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import MountSpec, RoleSpec, WorkloadSpec

WORDS = {"user": "ada", "group": "vision", "workspace": "cats", "job": "dlc1", "day": "240131"}


def storage(name: str, **given: object) -> StorageRecord:
    known = {"kind": "folder", "source": f"/nodes/{name}", "target": f"/{name}", "created_at": 0.0}
    return StorageRecord(id=f"id-{name}", name=name, **{**known, **given})  # type: ignore[arg-type]


SETS = storage("sets", read_only=True)
EXPORT = storage("export", kind="nfs", source="nas:/export", target="/export")
DEEP = storage("deep", kind="nfs", source="nas:/export/deep", target="/deep")
DEFAULT = tuple(
    storage(name, source=source, target=target, is_default=True) for name, source, target in DEFAULTS
)


def test_defaults_are_where_people_know_them_from():
    found = {one.target: one.source for one in mounts.choose(DEFAULT, (), WORDS)}
    assert found == {
        "/mnt/user/ada": "users/ada",
        "/mnt/share/vision": "groups/vision",
        "/home/ada": "work/ada",
        "/work": "work/ada",
        "/job": "work/ada/jobs/240131/dlc1",
        "/data": "data",
    }


def test_what_is_asked_for_takes_the_place_of_a_default():
    found = mounts.choose((*DEFAULT, SETS), [MountSpec(source="sets", target="/data/")], WORDS)
    assert [one.storage.name for one in found if one.target == "/data"] == ["sets"]
    assert found[0].read_only


@pytest.mark.parametrize("name", ["aaa", "zzz"])
def test_a_workspaces_own_default_goes_before_one_of_all_when_both_have_a_place(name: str):
    own = storage(name, source="/fast", target="/data", is_default=True, workspace_id="w")
    found = mounts.choose((*DEFAULT, own), (), WORDS)
    assert [one.source for one in found if one.target == "/data"] == ["/fast"]


def test_a_default_inside_of_what_is_asked_for_is_left_out():
    found = mounts.choose((*DEFAULT, SETS), [MountSpec(source="sets", target="/mnt/user")], WORDS)
    assert "/mnt/user/ada" not in {one.target for one in found}
    assert "/mnt/share/vision" in {one.target for one in found}


def test_the_node_is_told_how_much_of_a_source_users_cannot_put_links_into():
    more = (
        *DEFAULT,
        storage("scratch", source="/scratch/{user}/x", target="/scratch"),
        storage("disk", source="/disk", target="/disk"),
        storage("inner", source="/disk/a/b", target="/inner"),
        storage("odd", source="u-{user}", target="/odd"),
    )
    asked = [MountSpec(source=name) for name in ("scratch", "disk", "inner", "odd")]
    told = {one.storage.name: mounts.mount_of(one).options for one in mounts.choose(more, asked, WORDS)}
    assert {name: options.get("base", "") for name, options in told.items()} == {
        "scratch": "/scratch", "disk": "", "inner": "/disk", "odd": "storages",
        "user": "storages/users", "share": "storages/groups", "home": "storages/work", "work": "storages/work", "job": "storages/work", "data": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [("sets", "sets", ""), ("id-sets", "sets", ""), ("nas://nas/export", "export", ""),
     ("nas://nas/export/cats/", "export", "cats"), ("cpfs://nas/export/deep/cats", "deep", "cats"),
     ("nfs://nas/export/deeper", "export", "deeper")],
)  # fmt: skip
def test_a_storage_is_found_by_name_id_or_address(text: str, name: str, path: str):
    found, inner = mounts.find((SETS, EXPORT, DEEP), text, WORDS)
    assert (found.name, inner) == (name, path)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (MountSpec(source="no"), "There is no storage"),
        (MountSpec(source="nas://other/export"), "is on no storage"),
        (MountSpec(source="nas://nas/other"), "is on no storage"),
        (MountSpec(source="oss://bucket/x"), "cannot be oss://"),
        (MountSpec(source="nas://nas/export/../etc"), "no folder inside"),
        (MountSpec(source="sets", path="../etc"), "no folder inside"),
        (MountSpec(source="sets", path="a/../../etc"), "no folder inside"),
        (MountSpec(source="sets", path="a\nb"), "no folder inside"),
        (MountSpec(source="sets", target="data"), "no place"),
        (MountSpec(source="sets", target="/data/../etc"), "leads upwards"),
        *((MountSpec(source="sets", target=one), "would hide") for one in
          ("/", "/etc", "/etc/", "//usr//bin", "/usr/local", "/proc/1", "/dev/shm", "/home", "/mnt", "/var/lib", "/root", "/tmp")),
    ],
)  # fmt: skip
def test_a_mount_is_refused_when_it_leads_out_or_hides_something(spec: MountSpec, why: str):
    with pytest.raises(InvalidError, match=why):
        mounts.choose((SETS, EXPORT), [spec], WORDS)


def test_two_mounts_at_one_place_are_refused_in_the_words_of_the_vendor():
    with pytest.raises(InvalidError, match=r"^different datasource can't have the same mount path \(Give"):
        mounts.choose(
            (SETS, EXPORT),
            [MountSpec(source="sets", target="/a"), MountSpec(source="export", target="/a/")],
            WORDS,
        )


def test_a_path_of_a_mount_is_told_to_the_node_apart_from_its_source():
    (one,) = mounts.choose((EXPORT,), [MountSpec(source="nas://nas/export/cats", path="a")], WORDS)
    mount = mounts.mount_of(one)
    assert (mount.source, mount.kind, mount.options) == ("nas:/export", "nfs", {"path": "cats/a"})


@pytest.mark.parametrize(
    ("source", "base"),
    [
        ("nas:/export/{group}", "nas:/export"),
        ("nas:/{user}/jobs/{job}", "nas:/"),
        ("nas:/export/of-{user}", "nas:/export"),
        ("{workspace}.nas:/export", ""),
    ],
)
def test_of_a_network_storage_only_what_lies_above_its_words_is_mounted(source: str, base: str):
    one = storage("team", kind="nfs", source=source, target="/team", is_default=True)
    (chosen,) = mounts.choose((EXPORT, one), (), WORDS)
    mount = mounts.mount_of(chosen)
    assert mount.source == mounts.filled(source, WORDS)
    shared = {} if "{user}" in source else {"shared": "1"}
    assert mount.options == {"create": "1", "default": "1", **shared, **({"base": base} if base else {})}


@pytest.mark.parametrize(
    "given",
    [
        {"target": "/etc/x"},
        {"target": "{user}"},
        {"source": "/a/{name}"},
        {"source": "/a/../b"},
        {"source": "nas.example.com:/export"},
        {"source": "//nas\\export".lstrip("/")},
        {"source": "nas://nas.example.com/export"},
        {"kind": "oss"},
        {"kind": "nfs", "source": "/a"},
        {"kind": "nfs", "source": "-o:/a"},
        {"options": {"secret": "1"}},
        {"name": "a/b"},
        {"name": ".."},
        {"name": ""},
    ],
)
def test_a_storage_is_refused_when_it_cannot_be_one(given: dict[str, object]):
    with pytest.raises(InvalidError):
        check(replace(SETS, **given))


# -- views


NODE = NodeRecord(name="n1", created_at=0.0, address={"backend": "ssh", "host": "n1"})
LOCAL = NodeRecord(name="local", created_at=0.0, address={"backend": "local"})
FACTS = SandboxFacts(
    storages={"w": DEFAULT}, people={"u": "ada", "a": "admin"}, workspaces={"w": "cats"},
    groups={"w": "vision"}, admins=frozenset({"a"}),
)  # fmt: skip


def job(user: str = "u", **given: object) -> WorkloadRecord:
    spec = WorkloadSpec(name="j", command=str(given.pop("command", "true")), **given)  # type: ignore[arg-type]
    return WorkloadRecord(
        id="dlc1", name="j", kind="job", workspace_id="w", user_id=user, spec=spec, submitted_at=0.0
    )


def test_a_task_of_an_ordinary_user_is_kept_apart_everywhere():
    for node in (NODE, LOCAL):
        view = view_of(job(), RoleSpec(), node, None, FACTS)
        assert view is not None
        assert (view.isolation, view.user, view.home) == ("", "ada", "/home/ada")
        assert {mount.target for mount in view.mounts} >= {"/home/ada", "/mnt/user/ada", "/job", "/data"}
        assert all(mount.source.startswith("storages/") for mount in view.mounts)


def test_an_administrators_plain_task_on_the_servers_own_machine_has_no_view():
    assert view_of(job("a"), RoleSpec(), LOCAL, None, FACTS) is None
    assert (
        view_of(job("a", command="cat /database/x ~/data /opt/work"), RoleSpec(), LOCAL, None, FACTS) is None
    )
    assert view_of(job("a"), RoleSpec(), NODE, None, FACTS) is not None


@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("python3 /mnt/user/admin/mnt.py", "/mnt/user/admin"),
        ("cd /data; ls", "/data"),
        ("X='/job' y", "/job"),
    ],
)
def test_an_administrator_gets_the_storages_that_a_job_names(command: str, target: str):
    view = view_of(job("a", command=command), RoleSpec(), LOCAL, None, FACTS)
    assert view is not None
    assert view.isolation == "open"
    assert [mount.target for mount in view.mounts] == [target]


def test_a_node_says_how_strictly_it_keeps_tasks_apart():
    for wish in ("required", "off"):
        view = view_of(job(), RoleSpec(image="x"), replace(NODE, options={"isolation": wish}), None, FACTS)
        assert view is not None
        assert view.isolation == wish
    assert view_of(job(), RoleSpec(), replace(NODE, options={"isolation": "off"}), None, FACTS) is None
    seen = view_of(job(), RoleSpec(), replace(NODE, options={"visible": ["/data1"]}), None, FACTS)
    assert seen is not None
    assert [one.read_only for one in seen.mounts if one.source == "/data1"] == [True]


def test_images_run_where_they_can():
    assert can_run_images(LOCAL)
    assert not can_run_images(NODE)
    assert can_run_images(replace(NODE, facts={"containers": "podman"}))
    assert can_run_images(replace(NODE, options={"images": "ignore"}))
    assert not can_run_images(replace(LOCAL, options={"images": "refuse"}))


def test_the_sign_in_of_the_workspace_goes_before_one_of_all():
    logins = (
        Login("reg:5000", "all", "pass-1"),
        Login("reg:5000", "own", "pass-2", "w"),
        Login("reg:5000", "others", "pass-3", "x"),
        Login("docker.io", "hub", "pass-4"),
    )
    facts = replace(FACTS, logins=logins)
    for image, username in (("reg:5000/a/b:1", "own"), ("a/b", "hub"), ("other.example/a", "")):
        view = view_of(job(), RoleSpec(image=image), NODE, None, facts)
        assert view is not None
        assert view.username == username
        assert view.password not in repr(view) or not view.password


def test_an_image_without_a_registry_is_of_the_common_one():
    assert registry_of("pytorch/pytorch:2") == "docker.io"
    assert registry_of("localhost/x") == "localhost"
    assert registry_of("master0:5000/eflops/nv-pytorch:21.05-py3") == "master0:5000"


def test_a_storage_that_is_gone_is_left_out_of_a_launch():
    found = sandbox_spec.chosen_of(job(mounts=(MountSpec(source="gone"),)), FACTS)
    assert len(found) == len(DEFAULT)


def test_the_node_is_told_which_folders_are_one_users_and_which_are_shared():
    found = {one.target: mounts.mount_of(one).options for one in mounts.choose(DEFAULT, (), WORDS)}
    shared = {target for target, options in found.items() if options.get("shared")}
    assert shared == {"/mnt/share/vision", "/data"}
    of_operator = mounts.choose((SETS,), [MountSpec(source="sets")], WORDS)
    assert "shared" not in mounts.mount_of(of_operator[0]).options


def test_a_task_runs_as_the_number_of_its_user_on_every_node():
    assert sandbox_user.FIRST == FIRST_TASK_USER
    facts = SandboxFacts(numbers={"u-ada": 7}, processes=100)
    for user, uid in (("u-ada", FIRST_TASK_USER + 7), ("u-bob", FIRST_TASK_USER)):
        record = WorkloadRecord(
            id="dlc1",
            name="x",
            kind="job",
            workspace_id="w",
            user_id=user,
            submitted_at=0.0,
            spec=WorkloadSpec(name="x", command="x"),
        )
        view = view_of(record, RoleSpec(name="worker"), None, None, facts)
        assert view is not None
        assert (view.uid, view.processes) == (uid, 100)
