"""What UserData asks for is there when the machine has booted, as with cloud-init."""

from __future__ import annotations

import base64
import gzip
import json
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

import sshd as sshd_module


def cloud_config(lab, tmp_path, name="host"):
    public = sshd_module.write_key(tmp_path / name)
    private = "".join(f"    {line}\n" for line in (tmp_path / name).read_text().splitlines())
    with lab.known_hosts.open("a") as file:
        for address in (lab.wish().address, lab.wish().public_address):
            place = address if lab.machines.ssh_port == 22 else f"[{address}]:{lab.machines.ssh_port}"
            file.write(f"{place} {public}\n")
    return f"#cloud-config\nssh_keys:\n  ed25519_private: |\n{private}  ed25519_public: {public}\n"


async def test_the_first_login_is_verified_when_user_data_brings_host_keys(lab, tmp_path):
    await lab.machines.reconcile([lab.wish(user_data=cloud_config(lab, tmp_path).encode())])
    done = lab.ssh(lab.wish(), "echo in", strict=True)
    assert done.stdout == "in\n", done.stderr
    await lab.machines.reconcile([lab.wish(running=False)])
    await lab.machines.reconcile([lab.wish(boot=2)])
    assert lab.ssh(lab.wish().public_address, "echo in", strict=True).stdout == "in\n"


async def test_files_keys_and_commands_are_there_when_a_cloud_config_asks_for_them(lab, tmp_path):
    other = sshd_module.write_key(tmp_path / "other")
    text = (
        cloud_config(lab, tmp_path)
        + f"""
ssh_authorized_keys:
  - {other}
write_files:
- path: /etc/train/settings.ini
  permissions: '0640'
  content: |
    [a]
      b = "c: d"   # kept

- path: /data/blob
  encoding: gz+b64
  content: {base64.b64encode(gzip.compress(b"blob")).decode()}
packages: [unzip]
runcmd:
  - echo one >$HOME/one
  - [sh, -c, 'echo "two $1" >$HOME/two', sh, "it's"]
  - echo said
"""
    )
    await lab.machines.reconcile([lab.wish(user_data=text.encode(), authorized_keys=())])
    log = await lab.user_data_log()
    assert "'packages' is not emulated" in log
    assert "said" in log
    lab.client_key = tmp_path / "other"
    root = lab.root()
    assert lab.out(lab.wish(), f"cat {root}/etc/train/settings.ini") == '[a]\n  b = "c: d"   # kept'
    assert (
        lab.out(lab.wish(), f"stat -c %a {root}/etc/train/settings.ini; cat {root}/data/blob") == "640\nblob"
    )
    assert lab.out(lab.wish(), "cat ~/one ~/two") == "one\ntwo it's"


async def test_all_parts_are_done_when_user_data_has_several(lab):
    parts = MIMEMultipart()
    parts.attach(MIMEText("#!/bin/sh\necho first part\n", "x-shellscript"))
    parts.attach(MIMEText('#cloud-config\n{"runcmd": ["echo second part"]}\n', "cloud-config"))
    await lab.machines.reconcile([lab.wish(user_data=gzip.compress(parts.as_bytes()))])
    log = await lab.user_data_log()
    assert log.index("first part") < log.index("second part")


async def test_the_machine_boots_and_says_why_when_user_data_makes_no_sense(lab):
    await lab.machines.reconcile(
        [lab.wish(0, user_data=b"#cloud-config\na: [b\n"), lab.wish(1, user_data=b"\xff\xfenonsense")]
    )
    assert "cannot be read" in await lab.user_data_log(0)
    assert "no kind that is emulated" in await lab.user_data_log(1)
    assert lab.out(lab.wish(1), "echo on") == "on"


async def test_a_failing_script_is_told_when_asked_for_the_status(lab):
    await lab.machines.reconcile([lab.wish(user_data=b"#!/bin/sh\necho no good >&2\nexit 7\n")])
    assert "ended with status 7" in await lab.user_data_log()
    done = lab.ssh(lab.wish(), "cloud-init status --wait")
    assert (done.returncode, done.stdout) == (1, "status: error\n")


async def test_login_is_open_when_user_data_still_runs(lab):
    await lab.machines.reconcile([lab.wish(user_data=b"#!/bin/sh\nsleep 1000\n")])
    assert lab.out(lab.wish(), "cloud-init status") == "status: running"


async def test_new_host_keys_are_shown_when_a_script_writes_them_and_restarts_ssh(strong_lab, tmp_path):
    lab = strong_lab
    cloud_config(lab, tmp_path)
    private, public = (tmp_path / "host").read_text(), (tmp_path / "host.pub").read_text()
    script = (
        f"#!/bin/bash\nset -e\ncat >/etc/ssh/ssh_host_ed25519_key <<'X'\n{private}X\n"
        f"cat >/etc/ssh/ssh_host_ed25519_key.pub <<'X'\n{public}X\n"
        "chmod 600 /etc/ssh/ssh_host_ed25519_key\nsystemctl restart ssh\n"
    )
    await lab.machines.reconcile([lab.wish(user_data=script.encode())])
    await lab.user_data_log()
    for _ in range(50):  # sshd needs a moment to begin anew
        done = lab.ssh(lab.wish(), "echo in", strict=True)
        if done.returncode == 0:
            break
    assert done.stdout == "in\n", done.stderr


async def test_the_machine_is_reached_by_password_when_it_has_one(strong_lab):
    lab = strong_lab
    await lab.machines.reconcile([lab.wish(password="Sec ret'1")])
    shadow = (await lab.machines.execute("i-test0", b"cat /etc/shadow")).output.decode()
    assert shadow.startswith("root:$6$")
    assert "PasswordAuthentication yes" in lab.out(lab.wish(), "cat /run/trainyard/sshd.conf")


async def test_settings_of_a_plain_image_hold_when_asked_of_sshd(strong_lab, tmp_path):
    lab = strong_lab
    await lab.machines.reconcile([lab.wish()])
    argv = lab.ssh_argv(lab.wish(), "echo $LC_TEST $OTHER")
    argv[1:1] = ["-o", "SetEnv=LC_TEST=yes OTHER=no"]
    import subprocess

    assert subprocess.run(argv, capture_output=True, text=True).stdout == "yes\n"
    assert json.loads(lab.out(lab.wish(), """echo '{"a": 1}'""")) == {"a": 1}
