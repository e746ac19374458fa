"""Refusals of actions as the provider sends them: a code, a sentence and an HTTP status.

Only the emulator's side knows this class; errors of Trainyard itself live in `trainyard.lib.errors`.
"""

from __future__ import annotations


class Problem(Exception):  # noqa: N818 - the provider's word for an answer that is not an error of ours
    """A refusal: the client gets `code` and `message` in a JSON body with this HTTP status.

    `extra` adds fields to the body, such as AccessDeniedDetail.
    """

    def __init__(self, code: str, message: str, status: int = 400, **extra: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
        self.extra = extra

    def body(self, *, request_id: str, host: str) -> dict[str, str]:
        """The error as the provider writes it."""
        return {
            **self.extra,
            "RequestId": request_id,
            "HostId": host,
            "Code": self.code,
            "Message": self.message,
            "Recommend": f"https://api.aliyun.com/troubleshoot?q={self.code}&requestId={request_id}",
        }


def missing(name: str) -> Problem:
    """A required parameter that was not given."""
    return Problem(f"Missing{name}", f"{name} is mandatory for this action.")


def not_found(code: str, message: str) -> Problem:
    """A thing that does not exist."""
    return Problem(code, message, status=404)


def denied(code: str, message: str) -> Problem:
    """A thing that may not be done now, or by this account."""
    return Problem(code, message, status=403)
