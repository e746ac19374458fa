"""Code sources: repositories of a workspace, with a token where they are private. And what may stand in a job's `code`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from sqlalchemy import Connection

from trainyard.lib.errors import ConflictError, NotFoundError
from trainyard.lib.ids import new_id
from trainyard.lib.secret_names import has_password
from trainyard.server.auth.actor import Actor, require
from trainyard.server.people.workspace_lookup import choose_workspace
from trainyard.server.records.code_sources import CodeSourceRecord
from trainyard.server.secrets.sealing import Seal
from trainyard.server.service_context import Context
from trainyard.server.store.jobs import code_sources
from trainyard.server.validation import WORKSPACE_NAME, FieldError, check_text
from trainyard.spec.workload import WorkloadSpec

LONGEST = 1000
REQUIREMENTS = 200
_URL = re.compile(
    r"(https?|ssh|git)://[^\s/]+/\S.*\Z|file:///.+\Z|/.+\Z|([\w.-]+@)?[A-Za-z0-9][\w.-]*:(?!//|:)\S.*\Z"
)
_NO_BRANCH = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|\A[-/.]|[/.]\Z|\.lock\Z")
# A package as pip takes it: name[extra]>=1,<2; marker --hash=…, or name @ address; and addresses and files by themselves.
_PACKAGE = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\s*(\[[\w.,\s-]*\])?\s*"
    r"(@\s*\S.*|\(?\s*([=~!<>]=|[<>]|===)\s*[\w.*+!-]+\s*(,\s*([=~!<>]=|[<>]|===)\s*[\w.*+!-]+\s*)*\)?)?"
    r"\s*(;\s*[\w'\"(].*)?(\s+--\w.*)?\Z"
)
_ARCHIVE = re.compile(r"/|\.(whl|zip|tar\.gz)\Z")
_COMMIT = re.compile(r"[0-9a-fA-F]{4,64}\Z")


class CodeSources:
    """`services.codes`."""

    def __init__(self, context: Context, seal: Seal) -> None:
        self._context = context
        self._seal = seal

    async def add(
        self,
        actor: Actor,
        name: str,
        url: str,
        *,
        workspace: str = "",
        branch: str = "",
        commit: str = "",
        target: str = "",
        token: str = "",
    ) -> CodeSourceRecord:
        """Take a repository in. The token is sealed, and never shown again."""
        source_id = new_id("code-")
        record = CodeSourceRecord(
            id=source_id, name=name, workspace_id="", url=url, branch=branch, commit=commit, target=target,
            sealed=self._sealed(token, source_id), created_at=self._context.now(),
        )  # fmt: skip
        _check(record, token)

        def work(connection: Connection) -> CodeSourceRecord:
            place = choose_workspace(connection, actor, workspace)
            require(actor, "sources:write", place.id)
            if code_sources.find_source(connection, name, place.id) is not None:
                raise ConflictError(f"There is a code source {name!r} already.", hint="Choose another name.")
            made = replace(record, workspace_id=place.id)
            code_sources.insert_source(connection, made)
            self._context.audit(connection, actor, "sources.add", source_id, workspace_id=place.id)
            return made

        return await self._context.write(actor, "sources.add", name, work, wakes=False)

    async def get(self, actor: Actor, text: str) -> CodeSourceRecord:
        """One, by id or name."""
        return await self._context.db.read(lambda c: _visible(c, actor, text))

    async def change(
        self, actor: Actor, text: str, *, token: str | None = None, **changes: str
    ) -> CodeSourceRecord:
        """Change url, branch, commit, target or name; a token replaces the old one, an empty one removes it."""

        def work(connection: Connection) -> CodeSourceRecord:
            record = _visible(connection, actor, text)
            require(actor, "sources:write", record.workspace_id)
            changed = replace(record, **changes)  # type: ignore[arg-type]  # texts all of them
            if token is not None:
                changed = replace(changed, sealed=self._sealed(token, record.id))
            elif changed.url != record.url:
                # A token goes where it was meant to go, and nowhere else.
                changed = replace(changed, sealed=None)
            _check(changed, token or "")
            other = code_sources.find_source(connection, changed.name, record.workspace_id)
            if other is not None and other.id != record.id:
                raise ConflictError(
                    f"There is a code source {changed.name!r} already.", hint="Choose another name."
                )
            saved = code_sources.save_source(connection, changed)
            self._context.audit(
                connection, actor, "sources.change", record.id, workspace_id=record.workspace_id
            )
            return saved

        return await self._context.write(actor, "sources.change", text, work, wakes=False)

    async def remove(self, actor: Actor, text: str) -> None:
        """Forget one. Jobs that name it cannot start any more."""

        def work(connection: Connection) -> None:
            record = _visible(connection, actor, text)
            require(actor, "sources:write", record.workspace_id)
            code_sources.remove_source(connection, record.id)
            self._context.audit(
                connection, actor, "sources.remove", record.id, workspace_id=record.workspace_id
            )

        await self._context.write(actor, "sources.remove", text, work, wakes=False)

    async def list(self, actor: Actor) -> Sequence[CodeSourceRecord]:
        """Those of the actor's workspaces."""
        return await self._context.db.read(lambda c: _all(c, actor))

    def _sealed(self, token: str, owner: str) -> bytes | None:
        return self._seal.close_up(token.encode(), owner) if token else None


def check_code(spec: WorkloadSpec) -> None:
    """What can be said of a job's code and packages without looking."""
    code = spec.code
    if code is not None:
        if bool(code.source) == bool(code.url):
            raise FieldError("code", "needs a source or a url, and not both", hint="Leave one of them out.")
        if code.url:
            check_url("code.url", code.url)
        check_text("code.source", code.source, longest=64)
        check_refs("code.", code.branch, code.commit, code.target)
    if len(spec.requirements) > REQUIREMENTS:
        raise FieldError("requirements", "are too many", hint="Put them into a requirements.txt.")
    for one in spec.requirements:
        check_text("requirements", one, longest=LONGEST, empty=False)
        if has_password(one):
            raise FieldError(
                "requirements", "has an address with a password in it, which everybody would see",
                hint="Check the code out from a code source with a token, and install it from there.",
            )  # fmt: skip
        if one.lstrip().startswith("-"):
            raise FieldError(
                "requirements", f"has {one[:40]!r}, which is an option", hint="Name packages only."
            )
        if not (_PACKAGE.match(one.partition(" #")[0].strip()) or _ARCHIVE.search(one)):
            raise FieldError(
                "requirements", f"has {one[:40]!r}, which is no package", hint="Write numpy>=1.26."
            )
    check_text("requirements_dir", spec.requirements_dir, longest=LONGEST)


def fit_code(connection: Connection, spec: WorkloadSpec, workspace_id: str) -> WorkloadSpec:
    """The same job with its source by id; NotFoundError where its workspace has none such."""
    if spec.code is None or not spec.code.source:
        return spec
    record = code_sources.find_source(connection, spec.code.source, workspace_id)
    if record is None:
        raise NotFoundError(
            f"There is no code source {spec.code.source!r} in the workspace.", hint="See `trainyard code`."
        )
    return replace(spec, code=replace(spec.code, source=record.id))


def check_url(field: str, url: str) -> None:
    """An address of a repository, without a password in it."""
    check_text(field, url, longest=LONGEST, empty=False)
    if not _URL.match(url):
        raise FieldError(
            field, f"{url[:80]!r} is no address of a repository", hint="Write https://host/team/name.git."
        )
    if re.match(r"https?://[^/]*@", url) or has_password(url):
        raise FieldError(
            field, "has a user or a password in it", hint="Make a code source with a token instead."
        )


def check_refs(prefix: str, branch: str, commit: str, target: str) -> None:
    """A branch, a commit and a place for the code; each may be empty."""
    check_text(f"{prefix}branch", branch, longest=250)
    if branch and _NO_BRANCH.search(branch):
        raise FieldError(f"{prefix}branch", f"{branch[:40]!r} cannot be one", hint="Give its name alone.")
    if commit and not _COMMIT.match(commit):
        raise FieldError(
            f"{prefix}commit", f"{commit[:40]!r} is none", hint="Give 4 to 64 hexadecimal digits."
        )
    check_text(f"{prefix}target", target, longest=LONGEST)
    if ".." in PurePosixPath(target).parts:
        raise FieldError(f"{prefix}target", "leads upwards", hint="Give the path without `..`.")


def _check(record: CodeSourceRecord, token: str) -> None:
    if not WORKSPACE_NAME.match(record.name) or record.name != record.name.strip():
        raise FieldError(
            "name", f"{record.name[:80]!r} cannot be one", hint="Use letters, digits, blanks and . _ -."
        )
    check_url("url", record.url)
    check_refs("", record.branch, record.commit, record.target)
    check_text("token", token, longest=LONGEST)


def _all(connection: Connection, actor: Actor) -> list[CodeSourceRecord]:
    return code_sources.list_sources(connection, actor.places("sources:read"))


def _visible(connection: Connection, actor: Actor, text: str) -> CodeSourceRecord:
    found = [one for one in _all(connection, actor) if text in {one.id, one.name}]
    exact = [one for one in found if one.id == text] or found
    if len(exact) == 1:
        return exact[0]
    if exact:
        ids = ", ".join(one.id for one in exact[:5])
        raise ConflictError(
            f"{len(exact)} code sources are called {text!r}.", hint=f"Name one by its id: {ids}."
        )
    raise NotFoundError(f"There is no code source {text!r}.", hint="See `trainyard code`.")
