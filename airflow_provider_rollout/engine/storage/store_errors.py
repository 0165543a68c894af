"""What an error of the object store client means: try again, or which StoreError. Pure.

Receives: exceptions of obstore and of the operating system.        Hands on: a decision, a StoreError that says what to do next.
Invariants: decided by type and HTTP status, never by a message. Undecided is what a later, freshly signed request may change: 5xx, 429,
timeouts, broken connections, and 400, by which S3 reports expired credentials and slow bodies. No message holds a secret: obstore's
name the URL without its signature.
Source: Amazon S3 API Reference, "Error responses"; obstore 0.12, whose errors carry status and S3 code as text only.
"""

from __future__ import annotations

import errno
import re

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from airflow_provider_rollout.engine.exceptions import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
)

__all__ = ["FOREIGN_ERRORS", "is_undecided", "translate"]

FOREIGN_ERRORS = (BaseError, OSError, ValueError, NotImplementedError)
"""What the client raises."""

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]{1,80})</Code>")
_DETAIL = re.compile(r"<Message>([^<]{1,300})</Message>")
_ERRNO = re.compile(r"\(os error (\d+)\)")
_WORTH_RETRYING_4XX = frozenset({400, 408, 409, 425, 429})
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_undecided(error: BaseException) -> bool:
    """Whether a later request may succeed."""
    if not isinstance(error, (GenericError, ConnectionError, TimeoutError)):
        return False
    status = _status(error)
    return status is None or status >= 500 or status in _WORTH_RETRYING_4XX  # noqa: PLR2004 - HTTP


def translate(verb: str, name: str, error: Exception, attempts: int) -> StoreError:
    """Our error for a foreign one.

    Args:
        verb: what was tried, "read".
        name: with which object or store.
        error: what came back.
        attempts: how often it was tried at most.
    """
    status, reason = _status(error), _reason(error)
    match error:
        case AlreadyExistsError() | FileExistsError():
            return ObjectExistsError(f"{name} exists already")
        case PreconditionError():
            return ObjectChangedError(f"{name} has been written by somebody else")
        case _ if _code(error) == "NoSuchBucket":
            return StoreError(f"cannot {verb} {name}: the bucket does not exist; create it or correct the URI")
        case FileNotFoundError() | NotADirectoryError():
            return ObjectNotFoundError(f"{name} does not exist")
        case _ if isinstance(error, (PermissionDeniedError, UnauthenticatedError, PermissionError)) or status in {
            401,
            403,
        }:
            return StoreError(
                f"cannot {verb} {name}: access denied; check the credentials and what they permit ({reason})"
            )
        case _ if status is not None and 300 <= status < 400:  # noqa: PLR2004 - HTTP
            return StoreError(
                f"cannot {verb} {name}: the bucket is in another region; set the region of the connection ({reason})"
            )
        case _ if _errno(error) in _DISK_FULL:
            return StoreError(
                f"cannot {verb} {name}: the disk is full; free space and start again, the job resumes ({reason})"
            )
        case ValueError():
            return StoreError(f"cannot {verb} {name}: the key is not valid ({reason})")
    tries = f" after {attempts} attempts" if attempts > 1 and is_undecided(error) else ""
    return StoreError(f"cannot {verb} {name}{tries}: {reason}")


def _status(error: BaseException) -> int | None:
    match = _STATUS.search(str(error))
    return int(match.group(1)) if match else None


def _code(error: BaseException) -> str | None:
    match = _CODE.search(str(error))
    return match.group(1) if match else None


def _errno(error: BaseException) -> int | None:
    number = getattr(error, "errno", None)
    if isinstance(number, int):
        return number
    match = _ERRNO.search(str(error))
    return int(match.group(1)) if match else None


def _reason(error: BaseException) -> str:
    """The first line, without the dump of obstore's inner state, and what the server said."""
    text = str(error)
    first = text.partition("\n")[0].partition("<?xml")[0].strip().rstrip(":")
    detail = _DETAIL.search(text)
    said = f", {_code(error)}: {detail.group(1)}" if detail else ""
    return f"{first[:500]}{said}"
