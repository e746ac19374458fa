"""`dlc submit`: what is wrong with its words is said before anybody is asked for anything."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from trainyard.cli.dlc.main import Session, dlc
from trainyard.lib.errors import InvalidError


def test_the_kind_is_a_word_and_no_flag_when_a_job_is_submitted():
    done = CliRunner().invoke(dlc, ["submit", "--help"])  # warnings are errors here
    assert done.exit_code == 0, done.output
    assert "{tfjob|pytorchjob|xgboostjob|mpijob|batchjob|rayjob}" in done.output
    assert "--kind " not in done.output


def test_a_file_of_another_kind_is_refused_when_the_command_names_one(tmp_path):
    path = tmp_path / "job $(x) 中文.params"
    path.write_text("name=x\nkind=TFJob\ncommand=true\n")
    with pytest.raises(InvalidError, match="says kind=TFJob, and the command says PyTorchJob"):
        CliRunner().invoke(
            dlc,
            ["submit", "pytorchjob", "--job_file", str(path)],
            obj=Session(),
            catch_exceptions=False,
        )


def test_the_first_key_of_a_file_counts_when_an_editor_has_put_a_mark_before_it(tmp_path):
    path = tmp_path / "windows.params"
    path.write_bytes(b"\xef\xbb\xbfkind=TFJob\r\nname=x\r\ncommand=true\r\n")
    with pytest.raises(InvalidError, match="says kind=TFJob"):
        CliRunner().invoke(
            dlc,
            ["submit", "pytorchjob", "--job_file", str(path)],
            obj=Session(),
            catch_exceptions=False,
        )
