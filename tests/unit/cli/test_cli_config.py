"""The INI file of `create -c`."""

from __future__ import annotations

import pytest

from trainyard.cli.machines import create_file
from trainyard.lib.errors import InvalidError, NotFoundError

# As the manual of 1.0.x prints it.
MANUAL = """\
[ncluster]
; The job name for current creation job.
name=ncluster-v100
; The number of machine you want to create
machines=1
; The system disk size for instances in GB
system_disk_size=300
data_disk_size=0
image_name=ubuntu_18_04_64_20G_alibase_20190624.vhd
instance_type=ecs.gn6v-c8g1.16xlarge
spot=False
confirm_cost=False
skip_setup=True
disable_nas=True
zone_id=cn-beijing-h
vpc_name=ncluster-vpc

[cmd]
install_script=pwd
"""


@pytest.fixture
def write(hostile_path):
    def write(text, encoding="utf-8"):
        path = hostile_path / "create.cfg"
        path.write_text(text, encoding=encoding)
        return path

    return write


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("section", ["ncluster", "fastgpu", "trainyard"])
def test_the_file_of_the_manual_is_understood_whole_when_read(write, section, encoding):
    values, remarks = create_file.load(write(MANUAL.replace("[ncluster]", f"[{section}]"), encoding))
    assert remarks == []
    assert values == {
        "name": "ncluster-v100",
        "machines": 1,
        "system_disk_size": 300,
        "data_disk_size": 0,
        "image_name": "ubuntu_18_04_64_20G_alibase_20190624.vhd",
        "instance_type": "ecs.gn6v-c8g1.16xlarge",
        "spot": False,
        "confirm_cost": False,
        "skip_setup": True,
        "enable_nas": False,
        "zone_id": "cn-beijing-h",
        "vpc_name": "ncluster-vpc",
        "install_script": "pwd",
    }


def test_an_unknown_key_is_remarked_and_passed_over_when_found(write):
    values, remarks = create_file.load(write("[fastgpu]\nname=a\nmachins=3\n[odd]\nx=1\n"))
    assert values == {"name": "a"}
    assert len(remarks) == 2
    assert "did you mean machines?" in remarks[0]
    assert "[odd]" in remarks[1]


def test_percent_signs_and_several_lines_stay_as_they_are_in_a_script(write):
    values, _ = create_file.load(
        write("[trainyard]\nname=a\n[cmd]\ninstall_script =\n  date +%Y%m%d\n  echo 100%\n")
    )
    assert values["install_script"] == "date +%Y%m%d\necho 100%"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("name=a\n", "section"),
        ("[other]\nname=a\n", "no section"),
        ("[fastgpu]\nmachines=two\n", "whole number"),
        ("[fastgpu]\nspot=perhaps\n", "neither True nor False"),
        ("[fastgpu]\nname=a\nname=b\n", "not a configuration file"),
    ],
)
def test_a_mistake_is_named_when_the_file_has_one(write, text, word):
    with pytest.raises(InvalidError) as caught:
        create_file.load(write(text))
    assert word in caught.value.message
    assert caught.value.hint


def test_a_file_that_is_missing_or_binary_is_a_plain_error_when_read(tmp_path):
    with pytest.raises(NotFoundError):
        create_file.load(tmp_path / "nothing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidError):
        create_file.load(tmp_path / "binary")
