"""What starting a server brings in: only what every server needs, whatever it will be asked for."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest
from tree import ROOT

from trainyard.server.api.http.routing import MODULES, NOUNS, PREFIX, Route, module_routes, routes_of

# Needed for some requests, some settings or some starts.
LATER = {
    "alembic",
    "asyncssh",
    "httpx2",
    "yaml",
    "websockets",
    "trainyard.server.store.backup",
    "trainyard.server.usage.prometheus_text",
    "trainyard.server.api.dlc.routes",
    *(f"trainyard.server.api.{module}" for module in MODULES),
}
MOST_MODULES = 310  # of our own; measured 301

_COUNT = """
import json, sys
import trainyard.server.app
from pydantic import TypeAdapter
import gc
print(json.dumps([sorted(sys.modules), sum(isinstance(one, TypeAdapter) for one in gc.get_objects())]))
"""


@pytest.mark.slow  # a server is imported, in a process of its own
def test_a_start_imports_only_what_every_server_needs():
    done = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, check=True)
    modules, adapters = json.loads(done.stdout)
    assert LATER.intersection(modules) == set()
    assert sum(name.startswith("trainyard.") for name in modules) <= MOST_MODULES
    assert adapters == 0  # nothing of a route is made before it is asked for


@pytest.mark.slow  # all routes are imported
def test_every_module_with_routes_is_found_by_its_nouns():
    folder = ROOT / "src" / "trainyard" / "server" / "api"
    with_routes = {
        ".".join(file.relative_to(folder).with_suffix("").parts)
        for file in folder.rglob("*.py")
        if any(
            isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "router"
            for node in ast.parse(file.read_text(encoding="utf-8")).body
        )
    }
    assert with_routes == set(MODULES)
    for module, nouns in MODULES.items():
        words = {route.path.removeprefix(f"{PREFIX}/").partition("/")[0] for route in module_routes(module)}
        assert words == set(nouns), module


def test_every_route_is_made_late():
    routes = [route for noun in NOUNS for route in routes_of(noun)]
    plain = [route.path for route in routes if not isinstance(route, Route)]
    assert plain == [
        f"{PREFIX}/jobs/{{job_id}}/tasks/{{task}}/terminal"
    ]  # a WebSocket, which has no parameters
