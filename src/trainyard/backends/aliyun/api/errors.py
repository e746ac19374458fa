"""Failures of calls to the provider, and their translation into our errors.

`Refused` and `Unanswered` are what one sending can end in; they never leave this package. `explain` turns them into our
errors by the table in `error_codes.py`; the failure stays as `__cause__`, so that `code_of(error)` can steer what comes next.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from trainyard.backends.aliyun.api.error_codes import BUSY, FAMILIES, ROWS, Row
from trainyard.lib.errors import (
    ConflictError,
    DeniedError,
    Error,
    InvalidError,
    NotFoundError,
    UnreachableError,
)

# Why a refusal without a row of its own keeps a pool from buying, for programs.
REASONS: Mapping[type[Error], str] = {
    DeniedError: "provider.denied",
    UnreachableError: "provider.unreachable",
}
_THROTTLED = re.compile(r"(?i)throttl|flowcontrol|RequestLimitExceeded")
# What a request is about, the most telling first.
_SUBJECTS = (
    "InstanceType",
    "ImageFamily",
    "ImageId",
    "KeyPairName",
    "VpcName",
    "VSwitchName",
    "SecurityGroupName",
    "InstanceName",
    "InstanceId",
    "InstanceId.1",
    "SecurityGroupId",
    "VSwitchId",
    "VpcId",
    "FileSystemId",
    "DiskId",
    "RoleArn",
)


class Refused(Exception):  # noqa: N818  # a fact about one sending, not an error of ours
    """The provider answered with an error.

    `is_after_silence`: the same call was sent before and may have had its effect then, so this answer is not the whole
    story.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 400,
        request_id: str = "",
        recommend: str = "",
        retry_after_seconds: float = 0.0,
        denied_action: str = "",
    ) -> None:
        super().__init__(f"{code}: {message}" + (f" (request {request_id})" if request_id else ""))
        self.code = code
        self.message = message
        self.status = status
        self.request_id = request_id
        self.recommend = recommend
        self.retry_after_seconds = retry_after_seconds
        self.denied_action = denied_action
        self.is_after_silence = False


class Unanswered(Exception):  # noqa: N818  # a fact about one sending, not an error of ours
    """There was no answer that can be read.

    `is_sent`: the request may have arrived, so its effect may have happened. `is_final`: it will be no better next time.
    """

    def __init__(self, message: str, *, is_sent: bool, is_final: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.is_sent = is_sent
        self.is_final = is_final
        self.is_after_silence = False


Failure: TypeAlias = Refused | Unanswered


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The call that failed, for the error message."""

    product: str
    action: str
    region: str = ""
    host: str = ""
    form: Mapping[str, str] = field(default_factory=dict, repr=False)
    about: str = ""  # what the caller calls the thing, such as "ecs.gn6v-c8g1.2xlarge in cn-beijing-h"

    @property
    def subject(self) -> str:
        """The thing, in the caller's words or the request's."""
        if self.about:
            return self.about
        return next((self.form[name] for name in _SUBJECTS if self.form.get(name)), self.action)


def is_throttled(code: str) -> bool:
    """Whether the code says: too many calls. Alibaba's products spell it in a dozen ways, all with the word."""
    return bool(_THROTTLED.search(code))


def is_busy(code: str) -> bool:
    """Whether the code says: nothing happened, the same call will pass in a moment."""
    return code in BUSY


def code_of(error: BaseException) -> str:
    """The provider's code behind an error of ours; empty where there was none."""
    return error.__cause__.code if isinstance(error.__cause__, Refused) else ""


def may_have_happened(failure: Failure) -> bool:
    """Return whether the call may have had its effect although this attempt failed."""
    if isinstance(failure, Unanswered):
        return failure.is_sent
    return failure.status >= 500 and not is_throttled(failure.code)


def is_outcome_unknown(error: BaseException) -> bool:
    """Whether the call behind this error may have had its effect: look (by tag or name) before calling again."""
    cause = error.__cause__
    if not isinstance(cause, (Refused, Unanswered)):
        return False
    return may_have_happened(cause) or (cause.is_after_silence and not proves_nothing_was_made(error))


def proves_nothing_was_made(error: BaseException) -> bool:
    """Whether this refusal of a call with a token shows that earlier sendings with the token made nothing either.

    The product itself looks the token up first, and would have answered with what was made. Refusals that come from in
    front of it (limits, keys, rights, faults) show nothing.
    """
    cause = error.__cause__
    if (
        not isinstance(cause, Refused)
        or cause.status >= 500
        or is_throttled(cause.code)
        or is_busy(cause.code)
    ):
        return False
    row = find_row(cause.code)
    return (
        cause.code
        not in {"InvalidTimeStamp.Expired", "IdempotentParameterMismatch", "IdempotenceParamNotMatch"}
        and row is not None
        and row.error not in {DeniedError, UnreachableError}
    )


def is_worth_another_place(error: BaseException) -> bool:
    """Whether another zone, type or way of paying may succeed where this one failed."""
    row = find_row(code_of(error))
    return row is not None and row.is_local


def find_row(code: str) -> Row | None:
    """The table's row for a code: its own, else that of the family it belongs to."""
    if not code:
        return None
    if code in ROWS:
        return ROWS[code]
    return next((row for pattern, row in FAMILIES if pattern.search(code)), None)


def explain(failure: Failure, context: Context) -> Error:
    """Translate a failure into our error: one sentence that names the thing, and one that says what to do."""
    error = (
        _explain_silence(failure, context) if isinstance(failure, Unanswered) else _explain(failure, context)
    )
    error.__cause__ = failure
    return error


def _explain_silence(failure: Unanswered, context: Context) -> Error:
    where = context.host or "Alibaba Cloud"
    if not failure.is_sent:
        hint = (
            "Start `trainyard emulate aliyun` again, or unset TRAINYARD_ALIYUN_ENDPOINT."
            if where.startswith(("127.", "localhost"))
            else "Check the network, the region's name, and HTTPS_PROXY if you need one."
        )
        return UnreachableError(
            f"{where} does not answer {context.action}: {failure.message}",
            hint=hint,
            reason="provider.unreachable",
        )
    return UnreachableError(
        f"{where} gave no answer to {context.action}, so it is not known whether it happened: {failure.message}",
        hint="Run the same command again: it finds what was made.",
        reason="provider.unreachable",
    )


def _explain(failure: Refused, context: Context) -> Error:
    values = {
        "subject": context.subject,
        "thing": context.subject.removeprefix("the "),
        "action": failure.denied_action or f"{context.product}:{context.action}",
        "region": context.region or "this region",
        "message": _sentence(failure.message),
        "code": failure.code,
    }
    if is_throttled(failure.code):
        row = ROWS["Throttling"]
    elif failure.status >= 500:
        row = ROWS["InternalError"]
    else:
        row = find_row(failure.code) or ROWS[""]
        if not row.error:
            return _explain_unknown(failure, context)
    # NB: the provider tells an account without any quota from one that has used its quota up by these words alone.
    if "quota [0]" in failure.message and failure.code.startswith("QuotaExceed"):
        row = ROWS["QuotaExceed.AfterpayInstance"]
    kind = row.error or InvalidError
    return kind(
        row.sentence.format_map(values),
        hint=row.hint.format_map(values),
        reason=row.reason or REASONS.get(kind, ""),
        values={**values, "image": context.subject},
    )


def _explain_unknown(failure: Refused, context: Context) -> Error:
    """Explain an unknown code by the call, the provider's message and a link."""
    kinds: dict[int, type[Error]] = {
        401: DeniedError,
        403: DeniedError,
        404: NotFoundError,
        409: ConflictError,
    }
    error = kinds.get(failure.status, InvalidError)
    read = f"Read {failure.recommend}" if failure.recommend else f"Look up the code {failure.code}"
    give = (
        f", and give request id {failure.request_id} when you ask the provider" if failure.request_id else ""
    )
    return error(
        f"Alibaba Cloud refused {context.action} for {context.subject} with {failure.code}: "
        f"{_sentence(failure.message)}",
        hint=f"{read}{give}.",
        reason=REASONS.get(error, ""),
    )


def _sentence(message: str) -> str:
    """The provider's words on one line, without the full stop that our sentence brings itself."""
    return " ".join(message.split()).rstrip(".")[:300] or "no reason was given"
