"""The flags of `jobs submit` that set fields of a job: a click option for each flag of the table of job fields.

The type of a field decides which values its flag takes. The flags of code, mounts and secrets are short forms for parts
of a job and have their own parsers here. job_submit.py looks up the names of other jobs (--after).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import click

from trainyard.cli.duration_option import duration_option
from trainyard.cli.platform.platform_client import complete_workspace, pairs, variables
from trainyard.lib.errors import InvalidError
from trainyard.lib.units import parse_mebibytes
from trainyard.spec.job_fields import Between, Flag, JobField, Unit, fields_of, part_of
from trainyard.spec.workload import CodeSpec, MountSpec, RoleSpec, SecretSpec, WorkloadSpec

Function = TypeVar("Function", bound=Callable[..., Any])
_Part = TypeVar("_Part", WorkloadSpec, RoleSpec)
_COMPLETED = {"workspace": complete_workspace}


def job_flags(job: type) -> Callable[[Function], Function]:
    """All flags of a job, in the order of its table; those of roles stand where the roles do."""

    def decorate(function: Function) -> Function:
        for one, flag in reversed(list(_flags_of(job))):
            function = _option(one, flag)(function)
        return function

    return decorate


def with_flags(spec: WorkloadSpec, options: Mapping[str, Any]) -> WorkloadSpec:
    """The job with what flags say of it, and of each of its roles."""
    changed = _changed(spec, options)
    return replace(changed, roles=tuple(_changed(role, options) for role in spec.roles))


def _flags_of(kind: type) -> Iterator[tuple[JobField, Flag]]:
    for name, one in fields_of(kind).items():
        if name == "roles":
            yield from _flags_of(part_of(kind, name))
        yield from ((one, flag) for flag in one.flags)


def _option(one: JobField, flag: Flag) -> Callable[[Function], Function]:
    name, spellings = flag.option or one.name, flag.spellings.split()
    if one.unit is Unit.SECONDS:
        return duration_option(flag.spellings, flag.text, name)
    if one.one is bool:
        return click.option(*spellings, name, is_flag=True, default=None, help=flag.text)
    return click.option(
        *spellings,
        name,
        type=_type_of(one, flag),
        multiple=one.is_several or one.is_mapping,
        metavar=flag.value,
        shell_complete=_COMPLETED.get(name),
        help=flag.text,
    )


def _type_of(one: JobField, flag: Flag) -> click.Choice[str] | click.IntRange | click.FloatRange | None:
    """What click checks by itself; None for a text."""
    if one.choices is not None:
        return click.Choice([each.value for each in one.choices if each])
    if one.unit is not Unit.COUNT:
        return None
    between = next((rule for rule in one.rules if isinstance(rule, Between)), None)
    if one.one is float:
        return (
            click.FloatRange(None, None) if between is None else click.FloatRange(between.least, between.most)
        )
    if one.one is not int:
        return None
    if between is None:
        return click.IntRange(flag.least)
    return click.IntRange(int(between.least) if flag.least is None else flag.least, int(between.most))


def _changed(part: _Part, options: Mapping[str, Any]) -> _Part:
    found: dict[str, Any] = {}
    kind: type = type(part)
    for name, one in fields_of(kind).items():
        if one.flags and name != "after":
            own = getattr(part, name)
            value = _READ[name](own, options) if name in _READ else _value(one, own, options[name])
            if value is not None:
                found[name] = value
    return replace(part, **found)


def _value(one: JobField, own: Any, given: Any) -> Any:
    """What a flag says, as the field has it; None where it says nothing."""
    if given is None or given is False or given == ():  # NB: 0 says something
        return None
    flag = one.flags[0].spellings.split()[0]
    if one.unit is Unit.SECONDS:
        return max(1, round(given)) if given > 0 else 0
    if one.unit is Unit.MEBIBYTES:
        return size_in_mib(given, flag)
    if one.choices is not None:
        return one.choices(given)
    return {**own, **pairs(given, flag.removeprefix("--"))} if one.is_mapping else given


def _env(own: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, str] | None:
    return {**own, **variables(options["env"])} if options["env"] else None


def _code(code: CodeSpec | None, options: Mapping[str, Any]) -> CodeSpec | None:
    """The document's code with the flags over it; a word with a slash or a colon is an address, any other a source."""
    word = options["code"]
    if word:
        is_url = "/" in word or ":" in word
        code = CodeSpec(url=word) if is_url else CodeSpec(source=word)
    if code is None and (options["code_branch"] or options["code_commit"]):
        raise InvalidError("There is no code to take this branch or commit of.", hint="Add --code URL.")
    if code is None:
        return None
    changes = {"branch": options["code_branch"], "commit": options["code_commit"]}
    return replace(code, **{name: value for name, value in changes.items() if value is not None})


def _secrets(own: tuple[SecretSpec, ...], options: Mapping[str, Any]) -> tuple[SecretSpec, ...] | None:
    """The document's secrets, and those of the flags."""
    given = []
    for word in options["secrets"]:
        name, _, variable = word.partition("=")
        given.append(SecretSpec(name=name, variable=variable))
    for word in options["secret_files"]:
        name, equals, path = word.partition("=")
        if not equals or not path:
            raise click.UsageError(f"{word!r} is no secret with its file; write NAME=/run/secrets/NAME")
        given.append(SecretSpec(name=name, file=path))
    return (*own, *given) if given else None


def _mounts(own: tuple[MountSpec, ...], options: Mapping[str, Any]) -> tuple[MountSpec, ...] | None:
    return (*own, *map(read_mount, options["mounts"])) if options["mounts"] else None


def read_mount(word: str) -> MountSpec:
    """`data`, `data:/data` or `nas://host/path:/data:ro`."""
    text = word.removesuffix(":ro")
    is_read_only, text = text != word, text.removesuffix(":rw")
    source, colon, target = text.rpartition(":/")
    if not colon or source.endswith("/") or target.startswith("/"):  # an address has a colon of its own
        source, colon, target = text, "", ""
    if ":" in target:
        raise click.UsageError(f"{word!r} is no mount; write STORAGE, STORAGE:/FOLDER or STORAGE:/FOLDER:ro")
    return MountSpec(source=source, target=f"/{target}" if colon else "", read_only=is_read_only)


def size_in_mib(text: str | None, flag: str = "--memory") -> int | None:
    """What a flag says; None where it says nothing."""
    try:
        return None if text is None else parse_mebibytes(text)
    except ValueError as error:
        bare = str(text).strip()
        example = f"{bare}GiB" if bare.isdigit() else "16GiB"
        raise InvalidError(f"{flag}: {error}.", hint=f"Write {flag} {example}.") from error


_READ: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "env": _env, "code": _code, "secrets": _secrets, "mounts": _mounts,
}  # fmt: skip
