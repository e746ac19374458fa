"""Scripts of FastGPU's manuals, verbatim, on local machines, on real sshds and on the emulated cloud.

What a laptop does not have stands in on the machines' PATH: wget (no network), conda, apt, yum, unzip, and the training
program itself. tmux, tar, mpirun, ssh and the shells are real.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import netns
from emulation import emulated

SEEDS = Path(__file__).with_name("seeds")
PROJECT = Path(sys.executable).parent  # where trainyard, fastgpu and ecluster are installed
RANKS = 8

pytestmark = [
    pytest.mark.slow,  # whole scripts with eight ranks of real mpirun: some seconds each
    pytest.mark.timeout(180),
    pytest.mark.skipif(not shutil.which("mpirun"), reason="OpenMPI is not installed"),
]

STAND_INS = {
    "wget": """\
for url; do :; done
name=${url##*/}
echo "saving $name"
case $name in
    *.zip) mkdir -p chinese_L-12_H-768_A-12 && echo vocab > chinese_L-12_H-768_A-12/vocab.txt && echo zip > "$name" ;;
    *.tgz) mkdir -p toutiao_data && echo news > toutiao_data/train.txt && tar czf "$name" toutiao_data ;;
esac
""",
    "unzip": '[ -e "$1" ] && echo "inflating ${1%.zip}"\n',
    "apt": 'echo "apt $*"\n',
    "yum": 'echo "yum $*"\n',
    "conda": 'echo "conda $*"\n',
    "python": f'exec {shlex.quote(sys.executable)} "$@"\n',  # /usr/bin/python3 on hosts with a home of their own
}

TRAINING = """\
import os, sys, pathlib
rank = os.environ["OMPI_COMM_WORLD_RANK"]
assert "--use_perseus=true" in sys.argv
assert pathlib.Path("data.txt").read_text() == "uploaded"
home = pathlib.Path.home()
(home / "output_dir").mkdir(exist_ok=True)
(home / "output_dir" / f"rank{rank}").write_text(os.environ["OMPI_COMM_WORLD_SIZE"])
print(f"rank {rank}: accuracy 0.888", flush=True)
"""


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    folder = tmp_path / "stand ins"
    folder.mkdir()
    for name, body in STAND_INS.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder in which the user runs the script: the code to upload is beside it."""
    folder = tmp_path / "project"
    code = folder / "perseus-bert"
    code.mkdir(parents=True)
    (code / "run_classifier.py").write_text(TRAINING)
    (code / "data.txt").write_text("uploaded")
    return folder


class World:
    """One place to run scripts: an environment, and how to look at the machines."""

    def __init__(
        self, env: dict[str, str], project: Path, enter: list[str] | None = None, cloud: Path | None = None
    ) -> None:
        self.env = env
        self.project = project
        self.enter = enter or []
        self.cloud = cloud  # where the emulator keeps its machines

    def homes(self, *names: str) -> list[Path]:
        """The homes of machines, as this computer sees them."""
        there = {machine["name"]: machine for machine in self.machines()}
        if self.cloud is None:
            return [Path(str(there[name]["home"])) for name in names]
        folder = self.cloud / "machines" / "machines"
        return [folder / str(there[name]["id"]) / "root" / "root" for name in names]

    def python(self, script: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run([sys.executable, str(script), *words])

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run([str(PROJECT / words[0]), *words[1:]])

    def machines(self) -> list[dict[str, object]]:
        done = self.command("trainyard", "ls", "--stop", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        return found["machines"] if isinstance(found, dict) else found

    def kill(self, names: list[str]) -> None:
        """Release what a test has left."""
        if names:
            done = self.command("trainyard", "kill", "-f", *names)
            assert done.returncode == 0, done.stderr

    def _run(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.enter, *argv],
            cwd=self.project,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150,
        )


PLACES = ["local", pytest.param("ssh", marks=pytest.mark.ssh), pytest.param("aliyun", marks=pytest.mark.ssh)]


@pytest.fixture(params=PLACES)
def world(request: pytest.FixtureRequest, stand_ins: Path, project: Path, tmp_path: Path):
    if request.param == "aliyun":
        yield from _cloud_world(stand_ins, project, tmp_path)
        return
    env = {**os.environ, "TRAINYARD_BACKEND": request.param, "ALIYUN_DEFAULT_REGION": "cn-beijing"}
    if request.param == "local":
        env["PATH"] = f"{stand_ins}:{env['PATH']}"
    else:
        for number, host in enumerate(request.getfixturevalue("sshds")(2)):
            (host.home / ".profile").write_text(f"export PATH={shlex.quote(str(stand_ins))}:$PATH\n")
            inventory = Path(env["TRAINYARD_HOME"]) / "hosts.toml"
            inventory.parent.mkdir(exist_ok=True)
            with inventory.open("a") as file:
                file.write(
                    f'[hosts.host{number}]\naddress = "{host.address}"\nport = {host.port}\nuser = "{host.user}"\n'
                    f'key = "{host.client_key}"\nlease_dir = "{tmp_path}/leases{number}"\n'
                )
            ssh = Path(env["HOME"]) / ".ssh"
            ssh.mkdir(exist_ok=True)
            with (ssh / "known_hosts").open("a") as known:
                known.write(host.known_hosts_line.strip() + "\n")
    made = World(env, project)
    yield made
    made.kill([str(machine["name"]) for machine in made.machines()])
    _remove_runs()


def _cloud_world(stand_ins: Path, project: Path, tmp_path: Path):
    """From nothing: the script makes its network and machines itself, and is told by nobody where the cloud is."""
    state = tmp_path / "cloud"
    with emulated(state) as cloud:
        if cloud.ready["isolation"] == "home":
            pytest.skip("machines have no /root of their own here")
        # What the images of a real cloud have: in the /etc of all new machines.
        etc = state / "machines" / "template" / "etc"
        shutil.copytree(stand_ins, etc / "stand-ins")
        (etc / "stand-ins" / "python").write_text('#!/bin/sh\nexec /usr/bin/python3 "$@"\n')
        path = "/etc/stand-ins:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        words = f"SetEnv PATH={path} TRAINYARD_METADATA_FILE=/run/trainyard/metadata\n"
        (etc / "ssh" / "sshd_config.d" / "stand-ins.conf").write_text(words)
        env = {**os.environ, **cloud.environ(), "FASTGPU_SKIP_COST_CONFORM": "1"}
        env.pop("TRAINYARD_BACKEND", None)
        made = World(env, project, cloud=state)
        yield made
        made.kill([row["InstanceName"] for row in cloud.instances()])
        assert cloud.instances() == []


@pytest.fixture
def network_world(stand_ins: Path, project: Path, tmp_path: Path):
    """Two hosts with addresses of their own, which mpirun on one of them can tell from itself."""
    if netns.why_not():
        pytest.skip(netns.why_not())
    (stand_ins / "python").write_text('#!/bin/sh\nexec /usr/bin/python3 "$@"\n')
    with netns.Network(tmp_path) as network:
        env = {**os.environ, "TRAINYARD_BACKEND": "ssh", "ALIYUN_DEFAULT_REGION": "cn-beijing"}
        lines = []
        for name in ("alpha", "beta"):
            host = network.add_host(name)
            (host.home / ".profile").write_text(f"export PATH={shlex.quote(str(stand_ins))}:$PATH\n")
            lines += [
                f"[hosts.{name}]",
                f'address = "{host.address}"',
                'user = "root"',
                f'key = "{network.client_key}"',
            ]
            lines += [f'lease_dir = "{tmp_path}/leases-{name}"']
        Path(env["TRAINYARD_HOME"]).mkdir(exist_ok=True)
        (Path(env["TRAINYARD_HOME"]) / "hosts.toml").write_text("\n".join(lines) + "\n")
        (Path(env["HOME"]) / ".ssh").mkdir(exist_ok=True)
        shutil.copy(network.known_hosts, Path(env["HOME"]) / ".ssh/known_hosts")
        yield (
            World(env, project, ["nsenter", f"--net=/proc/{network.hub.pid}/ns/net"]),
            {host.name: host.home for host in network.hosts},
        )
        _remove_runs()


def _remove_runs() -> None:
    """Root can make /ncluster and /fastgpu on this computer, as on a cloud machine; take it away again."""
    for root in ("/ncluster", "/fastgpu"):
        for run in Path(root, "runs").glob("*perseus-bert*"):
            shutil.rmtree(run)
        for folder in (Path(root, "runs"), Path(root)):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def test_the_manuals_script_trains_unmodified(world):
    done = world.python(SEEDS / "train_news_classifier.py", "--machines", "1")

    assert done.returncode == 0, done.stdout + done.stderr
    override = world.env.get("TRAINYARD_BACKEND")
    assert (f"TRAINYARD_BACKEND={override} takes the place of 'aliyun'" in done.stderr) == bool(override)
    assert re.search(r"^Logging to /.*runs/perseus-bert-1$", done.stdout, re.MULTILINE)
    assert re.search(r"^training deploy time is: [0-9.]+ s\.$", done.stdout, re.MULTILINE)
    # Training goes on after the script has ended.
    waited = world.command("trainyard", "wait", "task0.perseus-bert")
    assert waited.returncode == 0, waited.stdout + waited.stderr
    output = world.homes("task0.perseus-bert")[0] / "output_dir"
    assert [path.read_text() for path in output.glob("rank*")] == [str(RANKS)] * RANKS
    logs = world.command("ecluster", "logs", "task0.perseus-bert")
    assert logs.stdout.count("accuracy 0.888") >= RANKS
    listed = world.command("ecluster", "ls")
    assert "task0.perseus-bert" in listed.stdout


def test_the_manuals_script_trains_across_two_machines(world):
    if world.env.get("TRAINYARD_BACKEND") == "ssh":
        pytest.skip("mpirun takes loopback addresses for its own: test_…_across_two_hosts has real ones")
    _check_ranks(world.homes(*_train_on_two(world)))


@pytest.mark.netns
def test_the_manuals_script_trains_across_two_hosts(network_world):
    world, homes = network_world
    _train_on_two(world)
    _check_ranks(list(homes.values()))
    assert world.command("ecluster", "kill", "-y", "{perseus-bert}").returncode == 0


def _train_on_two(world: World) -> list[str]:
    done = world.python(SEEDS / "train_news_classifier.py", "--machines", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^Logging to /.*runs/perseus-bert-2$", done.stdout, re.MULTILINE)
    waited = world.command("trainyard", "wait", "task0.perseus-bert")
    assert waited.returncode == 0, world.command("trainyard", "logs", "task0.perseus-bert").stdout
    return ["task0.perseus-bert", "task1.perseus-bert"]


def _check_ranks(homes: list[Path]) -> None:
    ranks = [sorted((home / "output_dir").glob("rank*")) for home in homes]
    assert [len(some) for some in ranks] == [RANKS, RANKS]
    assert {path.read_text() for some in ranks for path in some} == {str(2 * RANKS)}


def test_the_spot_tutorials_steps_train_then_stop(world, tmp_path):
    steps = (SEEDS / "spot_fragments.txt").read_text().split("\n--8<--\n")
    script = tmp_path / "train_news_classifier_spot.py"
    # What the tutorial's text leaves out: the imports, the image's name, and the mpirun words of the first manual.
    before = "import argparse\nparser = argparse.ArgumentParser()\nIMAGE_NAME = 'aiacc-dlimg-centos7:1.3.2'\n"
    between = (
        "job.run('cd perseus-bert')\n"
        "host_str = ','.join(task.ip + f':{NUM_GPUS}' for task in job.tasks)\n"
        "mpi_cmd = ['mpirun --allow-run-as-root', f'-np {args.machines * NUM_GPUS}', f'--npernode {NUM_GPUS}',\n"
        "           f'--host {host_str}', '--bind-to none']\n"
    )
    script.write_text(before + "\n".join([*steps[:4], between, *steps[4:]]))

    done = world.python(script)

    assert done.returncode == 0, done.stdout + done.stderr
    # job.stop() waited for the training that was started without waiting.
    output = world.homes("task0.fastgpu-perseus-bert")[0] / "output_dir"
    assert len(list(output.glob("rank*"))) == RANKS
    (machine,) = world.machines()
    assert machine["state"] == "stopped"
    started = world.command("fastgpu", "start", "-y", "task0.fastgpu-perseus-bert")
    assert started.returncode == 0, started.stderr
    assert world.machines()[0]["state"] == "running"


def test_the_manuals_configuration_file_makes_machines(world):
    done = world.command("ecluster", "create", "-c", str(SEEDS / "create.cfg"))

    assert done.returncode == 0, done.stdout + done.stderr
    (machine,) = world.machines()
    assert machine["name"] == "task0.ncluster-v100"
    assert machine["type"] == "ecs.gn6v-c8g1.16xlarge"
    assert world.command("ecluster", "stop", "-y", "{ncluster-v100}").returncode == 0
    assert world.command("ecluster", "start", "-y", "{ncluster-v100}").returncode == 0
    assert world.command("ecluster", "kill", "-y", "{ncluster-v100}").returncode == 0
    assert world.machines() == []


def test_a_script_named_fastgpu_can_import_ncluster(world, tmp_path):
    script = tmp_path / "elsewhere" / "fastgpu.py"
    script.parent.mkdir()
    script.write_text(
        "import ncluster\nfrom ncluster import ncluster_globals\n"
        "assert ncluster.ncluster_globals is ncluster_globals\n"
        "region = ncluster.get_region()\nncluster_globals.set_should_disable_nas(True)\n"
        "ncluster.set_backend('aliyun')\n"
        "job = ncluster.make_job(name='gtc', num_tasks=1, instance_type='ecs.gn6v-c8g1.2xlarge', spot=True,\n"
        "                        disable_nas=True, install_script='', image_type='aiacc')\n"
        "task = job.tasks[0]\n"
        "task.run('echo hello from $HOME')\n"
        "print(region, task.instance.instance_name(), bool(task.instance.instance_id()), task._out_fn)\n"
        "job.stop()\njob.kill()\n"
    )

    done = world.python(script)

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^cn-beijing task0\.gtc True /.*\.out$", done.stdout, re.MULTILINE)
    assert world.machines() == []
