"""What a name, a text, a path and a whole job must look like. Raises InvalidError with the field that is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from trainyard.lib.errors import InvalidError
from trainyard.lib.secret_names import SEALED
from trainyard.scheduling.cluster import rule_of
from trainyard.server.records.workspaces import WorkspaceRecord
from trainyard.spec import job_limits as limits
from trainyard.spec.job_fields import Between, Check, JobField, Matches, Printable, fields_of
from trainyard.spec.workload import RoleSpec, WorkloadSpec

USER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z")
WORKSPACE_NAME = re.compile(r"\w[\w .-]{0,63}\Z")  # letters of any script
LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?\Z")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}\Z")


class FieldError(InvalidError):
    """One field of a request is wrong; `fields` names it for programs."""

    def __init__(self, field: str, problem: str, *, hint: str = "") -> None:
        # A field's name may be the caller's own: half a letter in it would break the answer.
        shown = field.encode(errors="backslashreplace").decode()
        super().__init__(f"{shown} {problem}.", hint=hint)
        self.fields = {shown: problem}


def check_text(field: str, text: str, *, longest: int, empty: bool = True, lines: bool = False) -> None:
    """Printable text of a bounded length; with `lines`, line breaks and tabs too."""
    if not empty and not text.strip():
        raise FieldError(field, "is empty", hint="Give it some text.")
    if len(text) > longest:
        raise FieldError(field, f"is longer than {longest} characters", hint="Shorten it.")
    allowed = "\n\r\t" if lines else ""
    bad = next((letter for letter in text if not letter.isprintable() and letter not in allowed), None)
    # NB: str.isprintable() refuses the wide blanks of Chinese text too, which people do type.
    if bad is not None and not (bad.isspace() and bad not in "\n\r\t\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029"):
        raise FieldError(field, f"has a character that cannot be shown ({bad!r})", hint="Leave it out.")


def check_name(name: str) -> None:
    """What something may be called that is found by its name: addresses of the REST interface end with it."""
    check_text("name", name, longest=64, empty=False)
    if "/" in name or name in {".", ".."}:
        raise FieldError("name", f"{name!r} could not be found again", hint="Choose one without a slash.")


def check_user_name(name: str) -> None:
    """Letters, digits, and . _ @ - inside."""
    if not USER_NAME.match(name):
        raise FieldError(
            "name", f"{name[:80]!r} cannot be a user's", hint="Use letters, digits and . _ @ - (at most 64)."
        )


def check_workspace_name(name: str) -> None:
    """Letters of any script, digits, blanks, and . _ - inside."""
    if not WORKSPACE_NAME.match(name) or name != name.strip():
        raise FieldError(
            "name",
            f"{name[:80]!r} cannot be a workspace's",
            hint="Use letters, digits, blanks and . _ - (at most 64).",
        )


def check_node_name(name: str) -> None:
    """As in a host's name: lower-case letters, digits and dashes."""
    if not limits.DNS_NAME.match(name):
        raise FieldError(
            "name",
            f"{name[:80]!r} cannot be a node's",
            hint="Use lower-case letters, digits and dashes (at most 63).",
        )


def check_labels(field: str, labels: Mapping[str, str]) -> None:
    """Keys and values of labels."""
    if len(labels) > limits.TAGS:
        raise FieldError(field, f"has more than {limits.TAGS} entries", hint="Leave some out.")
    for key, value in labels.items():
        if not LABEL.match(key):
            raise FieldError(
                f"{field}.{key[:40]}", "is no name of a label", hint="Use letters, digits and . _ / -."
            )
        check_text(f"{field}.{key}", value, longest=253)


def check_taints(field: str, taints: tuple[str, ...]) -> None:
    """`key` or `key=value`."""
    check_labels(field, {taint.partition("=")[0]: taint.partition("=")[2] for taint in taints})


def check_priority(priority: int) -> None:
    """From 1 to 9."""
    _check_rules(fields_of(WorkloadSpec)["priority"], "priority", priority)


def _check_folder(field: str, path: str) -> None:
    """An absolute folder of the node, or one below the task's own; never a way out of it."""
    if not path:
        return
    if len(path.encode(errors="replace")) > 4000:
        raise FieldError(field, "is too long", hint="Give a shorter path.")
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in path) or not _is_encodable(path):
        raise FieldError(field, "has a character that no path should have", hint="Leave it out.")
    if ".." in PurePosixPath(path).parts:
        raise FieldError(field, "leads upwards", hint="Give the path without `..`.")


def fit_to_workspace(spec: WorkloadSpec, workspace: WorkspaceRecord) -> WorkloadSpec:
    """The spec with the workspace's own time limit, where it has one; InvalidError where it asks for longer."""
    longest = workspace.max_run_seconds
    if not longest:
        return spec
    if spec.max_run_seconds > longest:
        raise FieldError(
            "max_run_seconds",
            f"is {spec.max_run_seconds}, and jobs of {workspace.name} may run {longest} s at most",
            hint="Ask for less.",
        )
    return spec if spec.max_run_seconds else replace(spec, max_run_seconds=longest)


def check_spec(spec: WorkloadSpec) -> None:
    """Everything about a job that can be said without looking at anything else."""
    _check_fields("", spec)
    _check_growing(spec)
    if not 1 <= len(spec.roles) <= limits.ROLES:
        raise FieldError("roles", f"are {len(spec.roles)}", hint=f"Give 1 to {limits.ROLES} of them.")
    for number, role in enumerate(spec.roles):
        _check_role(f"roles.{number}", role, spec)
    names = [role.name for role in spec.roles]
    if len(set(names)) < len(names):
        raise FieldError("roles", "have one name twice", hint="Name each role differently.")
    _check_order(spec.roles)
    if all(role.minimum == 0 for role in spec.roles):
        raise FieldError("roles", "could all have no replicas", hint="Give one of them a minimum of 1.")
    replicas = sum(role.replicas for role in spec.roles)
    if replicas > limits.REPLICAS:
        raise FieldError(
            "roles", f"have {replicas} replicas", hint=f"Ask for at most {limits.REPLICAS} in all."
        )


def _check_fields(place: str, part: WorkloadSpec | RoleSpec) -> None:
    """Each field by the rules that its entry has."""
    kind: type = type(part)
    for name, one in _ruled(kind):
        _check_rules(one, place + name, getattr(part, name))


@cache
def _ruled(kind: type) -> tuple[tuple[str, JobField], ...]:
    return tuple((name, one) for name, one in fields_of(kind).items() if one.rules)


def _check_rules(one: JobField, place: str, value: Any) -> None:
    for rule in one.rules:
        if isinstance(rule, Between):
            _check_between(place, value, rule)
        elif isinstance(rule, Printable):
            check_text(place, value, longest=rule.longest, empty=rule.empty)
        elif isinstance(rule, Matches):
            for text in (value,) if isinstance(value, str) else value:
                _check_pattern(place, text, rule, may_be_empty=one.default == "")
        else:
            _CHECKS[rule](place, value)


def _check_pattern(place: str, text: str, rule: Matches, *, may_be_empty: bool) -> None:
    if not rule.pattern.match(text) and (text or not may_be_empty):
        raise FieldError(place, rule.problem.format(value=repr(text[: rule.shown])), hint=rule.hint)


def _check_order(roles: Sequence[RoleSpec]) -> None:
    """Roles begin after other roles of the job, and not in a circle: none of it would ever begin."""
    left = {role.name: set(role.after) for role in roles}
    for number, role in enumerate(roles):
        unknown = next((name for name in role.after if name not in left), None)
        if unknown is not None:
            raise FieldError(
                f"roles.{number}.after",
                f"names {unknown[:40]!r}, which is no role",
                hint="Name another role.",
            )
    while left:
        begin = [name for name, needs in left.items() if not needs & left.keys()]
        if not begin:
            raise FieldError(
                "roles", f"wait for each other: {', '.join(left)}", hint="Let one of them begin."
            )
        for name in begin:
            del left[name]


def _check_growing(spec: WorkloadSpec) -> None:
    is_elastic = any(role.minimum is not None and role.minimum < role.replicas for role in spec.roles)
    if spec.grow_seconds and not is_elastic:
        raise FieldError(
            "grow_seconds", "is for elastic jobs", hint="Give a minimum below the replicas, or leave it out."
        )


def _check_role(place: str, role: RoleSpec, spec: WorkloadSpec) -> None:
    if not (role.command or spec.command).strip():
        raise FieldError("command", "is empty", hint="Say what to run.")
    _check_fields(f"{place}.", role)
    if role.minimum is not None:
        # Beside others a role may have none at all: of two workers, one of which leads, one is enough.
        least = 0 if len(spec.roles) > 1 else 1
        _check_between(f"{place}.minimum", role.minimum, Between(least, role.replicas))
    _check_devices(place, role)


def _check_devices(field: str, role: RoleSpec) -> None:
    """Devices that are wired in rings train together in a few numbers only; a job with another would wait for ever."""
    rule = rule_of(role.device, {})
    least = role.replicas if role.minimum is None else role.minimum
    if rule.gives(role.devices, least):
        return
    sizes = ", ".join(map(str, rule.sizes[:-1])) + f" or {rule.sizes[-1]}"
    if role.devices not in rule.sizes:
        problem = f"are {role.devices}, and so many {role.device} cannot train together on one node"
        raise FieldError(f"{field}.devices", problem, hint=f"Ask for {sizes}.")
    total, whole = role.devices * least, rule.whole_when_many
    raise FieldError(
        f"{field}.devices",
        f"make {total} {role.device} in all, and several nodes give all {whole} of each",
        hint=f"Ask for {whole} in each replica, or for {whole} in all at most.",
    )


def _check_command(field: str, command: str) -> None:
    if len(command.encode(errors="replace")) > limits.COMMAND_BYTES:
        raise FieldError(field, "is too long", hint="Put it into a script, and run that.")
    if "\0" in command or not _is_encodable(command):
        raise FieldError(field, "has a character that no command can have", hint="Leave it out.")


def _check_env(field: str, env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not VARIABLE.match(name):
            raise FieldError(
                f"{field}.{name[:40]}", "is no name of a variable", hint="Use letters, digits and _."
            )
        if "\0" in value or not _is_encodable(value):
            raise FieldError(
                f"{field}.{name}", "has a character that no variable can have", hint="Leave it out."
            )
    size = sum(len(name) + _size(value) + 2 for name, value in env.items())
    if size > limits.VARIABLES_BYTES:
        raise FieldError(field, "is too large", hint="Put long values into a file.")


def _size(value: str) -> int:
    """In bytes, as a task gets it: a sealed one (in a copy of a job) is a third longer than what is in it."""
    size = len(value.encode(errors="replace"))
    return size * 3 // 4 if value.startswith(SEALED) else size


def _check_tags(field: str, tags: Mapping[str, str]) -> None:
    if len(tags) > limits.TAGS:
        raise FieldError(field, f"are more than {limits.TAGS}", hint="Leave some out.")
    for key, value in tags.items():
        check_text(field, key, longest=128, empty=False)
        check_text(f"{field}.{key}", value, longest=256)


def _check_between(field: str, number: float, rule: Between) -> None:
    # NB: what is not a number at all (nan) is in no range.
    if not rule.least <= number <= rule.most:
        hint = rule.hint or f"Give a number from {rule.least:g} to {rule.most:.0f}."
        raise FieldError(field, f"is {number}", hint=hint)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_CHECKS: Mapping[Check, Callable[[str, Any], None]] = {
    Check.COMMAND: _check_command,
    Check.VARIABLES: _check_env,
    Check.LABELS: check_labels,
    Check.TAINTS: check_taints,
    Check.TAGS: _check_tags,
    Check.FOLDER: _check_folder,
}
