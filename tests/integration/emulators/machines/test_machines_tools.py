"""The tools of training work on a machine and between machines, over their private addresses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import sshd as sshd_module
from trainyard.emulators.aliyun.machines import Isolation

PROGRAM = Path(__file__).parents[2] / "runtime" / "mpi" / "allreduce.py"
pytestmark = pytest.mark.slow  # several machines and logins each


@pytest.fixture
async def pair(lab):
    """Two machines that may log in to each other."""
    await lab.machines.reconcile(lab.wishes(2, user_data=b""))
    first, second = lab.wishes(2)
    sshd_module.write_key(lab.client_key.with_name("between"))
    public = lab.client_key.with_name("between.pub").read_text()
    private = lab.client_key.with_name("between").read_text()
    lab.ssh(first, "umask 077; cat >~/.ssh/id_ed25519", text=private)
    scan = ["ssh-keyscan", "-p", str(lab.machines.ssh_port), first.address, second.address]
    keys = subprocess.run(scan, capture_output=True, text=True)
    lab.ssh(first, "cat >>~/.ssh/known_hosts", text=keys.stdout)
    for wish in (first, second):  # mpirun logs in to its own machine too where addresses are loopback ones
        lab.ssh(wish, "cat >>~/.ssh/authorized_keys", text=public)
    return lab


async def test_sessions_outlive_the_login_when_tmux_keeps_them(lab):
    await lab.machines.reconcile([lab.wish()])
    lab.out(lab.wish(), "tmux new-session -d -s train 'echo in tmux; exec sleep 1000'")
    assert "train" in lab.out(lab.wish(), "tmux ls")
    assert "in tmux" in lab.out(lab.wish(), "sleep 0.2; tmux capture-pane -p -t train")


async def test_a_terminal_is_given_when_asked_for(strong_lab):
    await strong_lab.machines.reconcile([strong_lab.wish()])
    argv = strong_lab.ssh_argv(strong_lab.wish(), "tty; test -t 0 && echo terminal")
    done = subprocess.run([argv[0], "-tt", *argv[1:]], capture_output=True, text=True)
    assert done.stdout.replace("\r", "").split() == ["/dev/pts/0", "terminal"]


@pytest.mark.skipif(not shutil.which("rsync"), reason="rsync is not installed")
async def test_files_travel_when_sent_by_rsync_tar_and_sftp(lab, tmp_path):
    await lab.machines.reconcile([lab.wish()])
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "中文 $(x).txt").write_text("hello")
    argv = lab.ssh_argv(lab.wish())
    shell, target = " ".join(argv[:-1]), argv[-1]
    subprocess.run(["rsync", "-a", "-e", shell, f"{tmp_path}/up/", f"{target}:by-rsync/"], check=True)
    packed = subprocess.run(["tar", "-C", str(tmp_path), "-cf", "-", "up"], capture_output=True, check=True)
    subprocess.run([*argv, "mkdir by-tar && tar -C by-tar -xf -"], input=packed.stdout, check=True)
    words = [word if word != "-p" else "-P" for word in argv[1:-1]]
    subprocess.run(
        ["sftp", *words, "-b", "-", target], input=b"mkdir by-sftp\n", check=True, capture_output=True
    )
    assert lab.out(lab.wish(), "cat by-rsync/* by-tar/up/*; ls -d by-sftp") == "hellohelloby-sftp"


async def test_machines_reach_each_other_when_their_private_addresses_are_named(pair):
    lab = pair
    first, second = lab.wishes(2)
    lab.out(second, "echo there >~/where")
    assert lab.out(first, f"ssh -o BatchMode=yes {second.address} cat where") == "there"
    lab.out(first, f"mkdir d; echo data >d/f; rsync -a d {second.address}:")
    assert lab.out(second, "cat d/f") == "data"


@pytest.mark.mpi
@pytest.mark.skipif(
    not shutil.which("mpirun"), reason="OpenMPI is not installed (apt-get install openmpi-bin)"
)
async def test_ranks_meet_when_mpirun_names_private_addresses(pair):
    lab = pair
    addresses = [wish.address for wish in lab.wishes(2)]
    for address in addresses:
        lab.ssh(address, "mkdir -p job && cat >job/allreduce.py", text=PROGRAM.read_text())
    hosts = ",".join(f"{address}:2" for address in addresses)
    # As the manuals write it, and with options that rule out the interface that machines meet on.
    for options in ("-x NCCL_DEBUG=INFO -x PATH", "--mca btl_tcp_if_exclude lo,docker0"):
        done = lab.ssh(
            addresses[0],
            f"cd job && mpirun --allow-run-as-root -np 4 --npernode 2 --host {hosts} --bind-to none {options} "
            "/usr/bin/python3 allreduce.py",
        )
        assert done.returncode == 0, done.stderr
        lines = sorted(done.stdout.splitlines())
        assert [line.split()[:2] for line in lines] == [[f"rank={rank}", "sum=10"] for rank in range(4)]
        if lab.isolation is not Isolation.HOME:
            assert [line.split()[2] for line in lines] == ["on=task0", "on=task0", "on=task1", "on=task1"]
        places = [f"cwd={Path(lab.path(rank // 2) / 'root/root/job').resolve()}" for rank in range(4)]
        if lab.isolation is Isolation.HOME:
            assert [line.split()[3] for line in lines] == places


async def test_two_machines_share_files_when_they_mount_the_same_nas(strong_lab):
    lab = strong_lab
    first, second = lab.wishes(2)
    domain = "0123abc-xyz1.cn-beijing.nas.aliyuncs.com"
    await lab.machines.open()
    (lab.machines.nas / domain).mkdir()
    await lab.machines.reconcile([first, second])
    options = "vers=3,nolock,proto=tcp,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"
    for wish in (first, second):
        lab.out(wish, f"mkdir -p /fastgpu && mount -t nfs -o {options} {domain}:/ /fastgpu")
    lab.out(first, "echo shared >/fastgpu/x")
    assert lab.out(second, "cat /fastgpu/x; mountpoint -q /fastgpu && echo mounted") == "shared\nmounted"
    assert lab.ssh(first, "mount -t nfs nowhere.example:/ /mnt").returncode == 32
    lab.out(first, "umount /fastgpu && rmdir /fastgpu")
    assert lab.out(second, "cat /fastgpu/x") == "shared"
