"""What the kernel of this machine cannot show, on another one: see kernel_lab.py."""

from __future__ import annotations

import os

import kernel_lab
import pytest

# A kernel is started, and runs programs at a tenth of their speed.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LIMITS = "tests/integration/engines/nodes/test_task_limits.py"
# As systemd gives a part of the tree to a user's service: the folder and two files in it are theirs, and they begin there.
GIVEN = """
given=/sys/fs/cgroup/user.slice/given.service
mkdir -p $given && echo "+memory +cpu" >/sys/fs/cgroup/cgroup.subtree_control &&
    echo "+memory +cpu" >/sys/fs/cgroup/user.slice/cgroup.subtree_control &&
    chown nobody $given $given/cgroup.procs $given/cgroup.subtree_control &&
    echo $$ >$given/cgroup.procs && chown nobody "$HOME" || exit
exec setpriv --reuid=nobody --regid=nogroup --clear-groups \\
"""


def succeed(job: str) -> None:
    inside = kernel_lab.run(job, seconds=500)
    assert inside.status == 0, f"{inside.said}\n{inside.console}"
    assert " passed" in inside.said and "skipped" not in inside.said, inside


def test_tasks_are_held_to_their_limits_when_groups_are_of_version_2():
    succeed(kernel_lab.tests(LIMITS, "-k", "view0 or processor or dead"))


def test_tasks_are_held_to_their_limits_when_a_user_was_given_a_part_of_the_one_tree():
    succeed(GIVEN + kernel_lab.tests(LIMITS, "-k", "view0 or processor"))


@pytest.mark.skipif(not os.path.exists("/usr/sbin/rpc.nfsd"), reason="nfs-kernel-server is not installed")
def test_tasks_see_network_storages_when_the_kernel_mounts_them():
    succeed(kernel_lab.tests("tests/integration/engines/nodes/inside_storages.py"))
