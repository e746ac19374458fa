"""The RAM policies of the guides list exactly the actions that the code calls."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import trainyard.backends.aliyun as backend
from trainyard.emulators.aliyun.api.actions import ACTIONS

ROOT = Path(__file__).parents[4]
FOLDER = Path(backend.__file__).parent
ON_MACHINES = "stop_self.py"  # runs there, by a role of its own
TABLES = {"error_codes.py", "errors.py"}  # speak of actions, and call none
# Tables of what actions are like, whoever calls them.
NAMED_ONLY = {"LISTINGS", "_TOKEN", "_REPEATABLE", "_WITHOUT_REGION", "SLOW_SECONDS"}
KNOWN = {action for _, action in ACTIONS}
PRODUCTS = {product for product, _ in ACTIONS} | {"sts"}


def called(paths: Iterable[Path]) -> set[str]:
    """`ecs:RunInstances`: an action behind its product; one that stands alone is of ECS."""
    return {action for path in paths for action in _called_in(ast.parse(path.read_text(encoding="utf-8")))}


def _called_in(tree: ast.Module) -> set[str]:
    alone: set[str] = set()
    paired: dict[str, str] = {}
    for statement in tree.body:
        if _target(statement) in NAMED_ONLY:
            continue
        for node in ast.walk(statement):
            words = [_text(each) for each in _members(node)]
            paired |= {two: one for one, two in pairwise(words) if one in PRODUCTS}
            if _text(node) in KNOWN:
                alone.add(_text(node))
    return {f"{paired.get(action, 'ecs')}:{action}" for action in alone}


def _target(statement: ast.stmt) -> str:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
    return targets[0].id if targets and isinstance(targets[0], ast.Name) else ""


def _members(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Call):
        return node.args
    return node.elts if isinstance(node, ast.Tuple) else []


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def allowed(guide: str) -> set[str]:
    text = (ROOT / "docs" / "guides" / guide).read_text(encoding="utf-8")
    policies = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    return {
        action
        for policy in policies
        if "Statement" in policy
        for statement in policy["Statement"]
        for action in statement["Action"]
    }


def test_the_policy_of_a_user_allows_what_the_client_calls_and_nothing_else():
    modules = (path for path in FOLDER.rglob("*.py") if path.name not in {ON_MACHINES, *TABLES})
    # Assuming a role is allowed by the role, to those who have one in their profile.
    assert allowed("cloud.md") == {action for action in called(modules) if not action.startswith("sts:")}


def test_the_policy_of_a_role_allows_what_machines_call_and_nothing_else():
    assert allowed("costs.md") == called([FOLDER / ON_MACHINES])
