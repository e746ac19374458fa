"""A field of a job is one entry: two made-up ones are read, checked, kept, shown and described by nothing but their entries."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import click
import pytest
from click.testing import CliRunner
from pydantic import TypeAdapter

from trainyard.cli.dlc.job_keys import request_of
from trainyard.cli.jobs.job_flags import job_flags, with_flags
from trainyard.lib.errors import InvalidError
from trainyard.server.api.dlc.field_table import fields_by_table
from trainyard.server.api.views import spec_of
from trainyard.server.store.jobs import specs
from trainyard.server.validation import FieldError, check_spec
from trainyard.spec.document import TOML, parse_fields
from trainyard.spec.job_fields import Between, DlcName, Flag, Unit, entry, fields_of
from trainyard.spec.job_fields_table import parts_of, rows_of
from trainyard.spec.workload import RoleSpec, WorkloadSpec


class Colour(StrEnum):
    """What a made-up field may be."""

    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaintedRole(RoleSpec):
    """A role with one more field."""

    paint_mib: int = field(default=0, metadata=entry(
        "How much paint each task gets", "油漆",
        unit=Unit.MEBIBYTES, also="paint",
        rules=[Between(0, 2048)],
        flags=[Flag("--paint", "SIZE", "Paint of each replica.")],
        dlc=DlcName("ResourceConfig.Paint", "paint", "paint of each"),
    ))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PaintedJob(WorkloadSpec):
    """A job with one more field, and such roles."""

    roles: tuple[PaintedRole, ...] = field(
        default=(PaintedRole(),), metadata=entry("Replicas of different shapes", "角色")
    )
    colour: Colour = field(default=Colour.RED, metadata=entry(
        "The colour of its bar", "颜色",
        flags=[Flag("--colour", "COLOUR", "The colour of its bar.")],
        dlc=DlcName("Settings.Colour", "colour", "Red or Blue", choices={"Red": "red", "Blue": "blue"}),
    ))  # fmt: skip


TEXT = "name: x\ncommand: y\ncolour: blue\npaint: 1GiB\n"
JOB = PaintedJob(name="x", command="y", colour=Colour.BLUE, roles=(PaintedRole(paint_mib=1024),))


def test_a_new_field_is_read_from_documents():
    assert parse_fields(PaintedJob, TEXT)[0] == JOB
    toml = 'name = "x"\ncommand = "y"\ncolour = "blue"\n[[roles]]\npaint = "1GiB"\n'
    assert parse_fields(PaintedJob, toml, TOML)[0] == JOB


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("colour: green", "'colour' is 'green', not one of red, blue"),
        ("color: blue", r"there is no key 'color' \(did you mean 'colour'\?\)"),
        ("paint: 4", "'paint' is 4, without a unit; write 4GiB or 4MiB"),
    ],
)
def test_a_new_field_is_refused_with_its_line_when_it_is_wrong(line, sentence):
    with pytest.raises(InvalidError, match=f"document:3: {sentence}"):
        parse_fields(PaintedJob, f"name: x\ncommand: y\n{line}\n")


def test_a_new_field_is_checked_by_the_rules_of_its_entry():
    check_spec(JOB)
    with pytest.raises(FieldError, match=r"roles\.0\.paint_mib is 4096") as caught:
        check_spec(PaintedJob(name="x", command="y", roles=(PaintedRole(paint_mib=4096),)))
    assert caught.value.hint == "Give a number from 0 to 2048."


def test_a_new_field_is_kept_in_rows():
    assert specs.spec_with(PaintedJob, specs.encode(JOB)) == JOB


def test_a_new_field_is_shown_and_described_by_rest():
    shown = spec_of(JOB)
    assert (shown["colour"], shown["roles"][0]["paint_mib"]) == ("blue", 1024)
    adapter = TypeAdapter(PaintedJob)
    assert adapter.validate_python({"name": "x", "command": "y", "colour": "blue", "roles": [{"paint_mib": 1024}]}) == JOB  # fmt: skip
    schema = adapter.json_schema()
    assert schema["properties"]["colour"]["description"] == "The colour of its bar."
    assert schema["$defs"]["PaintedRole"]["properties"]["paint_mib"]["default"] == 0


def test_a_new_field_is_a_flag():
    found = []

    @click.command()
    @job_flags(PaintedJob)
    def submit(**options):
        found.append(with_flags(PaintedJob(name="x", command="y"), options))

    page = CliRunner().invoke(submit, ["--help"], catch_exceptions=False).output
    assert "--colour COLOUR" in page
    assert "Paint of each replica." in page
    CliRunner().invoke(submit, ["--colour", "blue", "--paint", "1GiB"], catch_exceptions=False)
    assert found == [JOB]


def test_a_new_field_comes_from_params_files_of_dlc():
    body = request_of({"command": "y", "colour": "Blue", "worker_paint": "1"}, job=PaintedJob).body
    assert body["Settings"] == {"Colour": "Blue"}
    assert body["JobSpecs"][0]["ResourceConfig"]["Paint"] == "1Gi"
    assert fields_by_table(PaintedJob, body)["colour"] is Colour.BLUE
    assert fields_by_table(PaintedRole, body["JobSpecs"][0])["paint_mib"] == 1024
    with pytest.raises(InvalidError, match="Colour 'Pink' is unknown"):
        fields_by_table(PaintedJob, {"Settings": {"Colour": "Pink"}})


def test_a_new_field_is_in_the_reference_in_two_languages():
    rows = {row[0]: row for kind in parts_of(PaintedJob) for row in rows_of(kind)}
    assert "颜色" in rows["`colour`"]
    assert "`--colour`" in rows["`colour`"]
    assert "0 to 2048" in rows["`paint_mib`, `paint`"]
    assert "The colour of its bar." in rows["`colour`"]


def test_every_field_has_a_text_and_a_name_in_chinese():
    for kind in dict.fromkeys(parts_of(WorkloadSpec)):
        for name, one in fields_of(kind).items():
            assert one.text, (kind, name)
            assert not one.text.endswith("."), (kind, name)
            assert any("\u4e00" <= letter <= "\u9fff" for letter in one.chinese), (kind, name)
