"""The description of the REST API: committed as it is generated, whole, and in one voice."""

from __future__ import annotations

import json

import pytest
from tree import ROOT

from trainyard.server.api.application import describe, make_application

COMMITTED = ROOT / "docs" / "reference" / "openapi.json"
OPEN = {
    ("get", "/api/v1/health"),
    ("get", "/api/v1/version"),
    ("post", "/api/v1/session"),
    ("post", "/api/v1/requests/accounts"),
}


@pytest.fixture(scope="module")
def document():
    return describe(make_application(body_limit=1))


def operations(document):
    return [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_committed_description_is_what_the_code_says(document):
    assert json.loads(COMMITTED.read_text(encoding="utf-8")) == json.loads(json.dumps(document)), (
        "run scripts/reference"
    )


def test_every_route_says_what_it_does_and_how_it_fails(document):
    for method, path, operation in operations(document):
        assert operation["description"].rstrip().endswith("."), (method, path)
        for failure in ("4XX", "5XX"):
            schema = operation["responses"][failure]["content"]["application/json"]["schema"]
            assert schema["$ref"].endswith("/Problem"), (method, path)
        assert "422" not in operation["responses"], (method, path)


def test_routes_have_names_of_their_own(document):
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))


def test_only_a_few_routes_are_open_to_everybody(document):
    assert {
        (method, path) for method, path, each in operations(document) if each.get("security") == []
    } == OPEN
    assert document["security"]


def test_paths_are_nouns(document):
    words = {
        word for path in document["paths"] for word in path.split("/") if word and not word.startswith("{")
    }
    assert not words & {
        "get",
        "list",
        "create",
        "delete",
        "update",
        "submit",
        "stop",
        "approve",
        "clone",
        "login",
    }


def test_misspelt_keys_are_refused_in_every_body(document):
    bodies = {
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for _, _, operation in operations(document)
        if "requestBody" in operation
    }
    schemas = document["components"]["schemas"]
    assert not [name for name in bodies if schemas[name].get("additionalProperties") is not False]
