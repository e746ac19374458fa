"""The YAML of cloud-config is read as people write it, and what cannot be read is said."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.emulators.aliyun.machines import userdata
from trainyard.emulators.aliyun.machines.cloudconfig import NotUnderstoodError, parse

CASES = {
    "": None,
    "a: 1": {"a": 1},
    "a: 0644": {"a": 0o644},
    "a: '0644'": {"a": "0644"},
    "a: yes\nb: off\nc: ~\nd:": {"a": True, "b": False, "c": None, "d": None},
    "a: 1.5\nb: 1.2.3\nc: -3": {"a": 1.5, "b": "1.2.3", "c": -3},
    "# c\n---\na: b # c\n...\n": {"a": "b"},
    "a: b#c": {"a": "b#c"},
    "a: http://x:80/y": {"a": "http://x:80/y"},
    'a: "x\\n\\u4e2d\\\\"': {"a": "x\n中\\"},
    "a: 'it''s # no comment' # one": {"a": "it's # no comment"},
    '"a b": c': {"a b": "c"},
    "- a\n- b": ["a", "b"],
    "x:\n- a\n- b\ny: 1": {"x": ["a", "b"], "y": 1},
    "x:\n  - a: 1\n    b: 2\n  - c": {"x": [{"a": 1, "b": 2}, "c"]},
    "- - a\n  - b\n- c": [["a", "b"], "c"],
    "-\n  a: 1\n- ": [{"a": 1}, None],
    "a: [x, 'y, z', 3, [u]]": {"a": ["x", "y, z", 3, ["u"]]},
    "a: {x: 1, 'y': [2], z}": {"a": {"x": 1, "y": [2], "z": None}},
    "a: [x,\n  y]\nb: 1": {"a": ["x", "y"], "b": 1},
    "a: |\n  x\n    y\n\n  z\n\nb: 1": {"a": "x\n  y\n\nz\n", "b": 1},
    "a: |-\n  x\n\nb: 1": {"a": "x", "b": 1},
    "a: |+\n  x\n\nb: 1": {"a": "x\n\n", "b": 1},
    "a: |2\n    x\nb: 1": {"a": "  x\n", "b": 1},
    "a: >\n  x\n  y\n\n  z\n": {"a": "x y\nz\n"},
    "- |\n  x\n  # kept\n- y": ["x\n# kept\n", "y"],
    "a:\n  b:\n    c: |\n      x\n  d: 1": {"a": {"b": {"c": "x\n"}, "d": 1}},
    "a: |\n  tab\there\n": {"a": "tab\there\n"},
    "a: b\r\nc: d\r\n": {"a": "b", "c": "d"},
    "a: &x 1\nb: *x": {"a": 1, "b": 1},
    "a: b\n  c": {"a": "b c"},
    "a: !!str 1": {"a": "1"},
    "- echo a > b; c\n- [ls, -l, /]\n- -x": ["echo a > b; c", ["ls", "-l", "/"], "-x"],
}


@pytest.mark.parametrize("text", CASES, ids=repr)
def test_the_value_is_what_yaml_says_when_a_person_writes_it(text):
    assert parse(text) == CASES[text]


@pytest.mark.parametrize(
    "text",
    ["a: [b", "a: *x", 'a: "b', "a: 'b' c", "a: !x b", "a: 2026-99-99", "[" * 5000, "{[]: 1}", "a: \0"],
)
def test_the_line_is_named_when_it_cannot_be_read(text):
    with pytest.raises(NotUnderstoodError, match="line"):
        parse(text)


@given(st.text())
def test_any_text_is_read_or_refused_when_it_comes(text):
    try:
        parse(text)
    except NotUnderstoodError:
        pass
    userdata.read(text.encode("utf-8", "surrogatepass"))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_is_yaml_when_a_program_writes_it(value):
    assert parse("#cloud-config\n" + json.dumps(value)) == value


def test_a_script_keeps_every_byte_when_it_is_user_data():
    boot = userdata.read(b"#!/bin/sh\n\xff\xfe\r\n")
    assert [(file.path, file.content, file.mode) for file in boot.files] == [
        ("/var/lib/cloud/instance/scripts/part-001", b"#!/bin/sh\n\xff\xfe\r\n", 0o700)
    ]


def test_nothing_is_done_when_there_is_no_user_data():
    assert userdata.read(b"") == userdata.FirstBoot()


def test_every_mistake_is_noted_when_entries_make_no_sense():
    text = """#cloud-config
write_files: [{content: x}, {path: /a, permissions: rw}, {path: /b, encoding: b64, content: x}, {path: /c, encoding: gz, content: x}]
users: [default, {name: root, ssh_authorized_keys: [k]}, {name: bob}]
mounts: []
"""
    boot = userdata.read(text.encode())
    assert boot.files == []
    assert boot.authorized_keys == ["k"]
    assert len(boot.notes) == 6
