"""Every way in which a rollout job can go wrong.

::

    RolloutError                      base: what happened, to which document, shard or key, and what to do next
    ├─ InputError                     what the job was handed is wrong; a retry cannot help
    │  ├─ ConfigError                 (also ValueError) raised at construction, which is when a DAG is parsed
    │  ├─ ShardError                  an input shard is missing, changed or unreadable
    │  └─ BadRowError                 one row of a shard is no document
    ├─ InferenceError                 one generate call ended without a result
    │  ├─ BadRequestError             the server refused this payload for good (4xx)
    │  ├─ RequestRejectedError        retryable refusal (408, 409, 425, 429, 5xx)
    │  ├─ EndpointUnavailableError    no connection, or it broke before the answer was whole
    │  ├─ RequestTimeoutError         no answer within ``request_timeout``
    │  ├─ MalformedResponseError      answered, but not in the agreed shape
    │  ├─ TruncatedError              ``finish_reason`` is "length" and ``on_truncated`` is "retry" or "fail"
    │  └─ QuarantinedError            in flight whenever a server died; not sent again
    ├─ ServerError                    a model server that the job owns
    │  ├─ ServerStartError            it did not become ready
    │  └─ ServerExitedError           it died more often than ``server_start_max_retries`` allows
    ├─ StoreError                     durable state cannot be trusted or reached
    │  ├─ ObjectNotFoundError         the key does not exist
    │  ├─ ObjectExistsError           create-only write on a key that exists
    │  ├─ ObjectChangedError          conditional write on a key that somebody else has written
    │  ├─ CheckpointError             unreadable state; never treated as absent state
    │  │  └─ FingerprintMismatchError the state belongs to another configuration
    │  ├─ RequestCacheError           the local cache cannot be written
    │  └─ ManifestError               the counts do not add up
    ├─ FencedError                    a newer attempt owns this output
    ├─ AttemptActiveError             another attempt is at work on this output
    ├─ FailureBudgetError             more documents failed than the budget allows
    ├─ EngineFaultError               a defect of this engine, which no document is blamed for
    └─ JobStoppedError                the job was asked to stop and left its state resumable
       ├─ JobInterruptedError         by a signal
       └─ JobCancelledError           by its user

Who raises, who translates, who records: each room raises its own branch and translates foreign errors at its own border
(``client.py`` for HTTP, ``object_store.py`` for the store, ``request_cache.py`` for SQLite). ``InferenceError``, and
whatever a user's function raises, is *recorded*: a bad rollout is data. Everything else is *fatal*: it leaves the runner and ends the job.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_ARGUMENTS = 2
EXIT_FENCED = 75  # EX_TEMPFAIL of sysexits.h: another attempt is at work, try later
EXIT_INTERRUPTED_BY_USER = 130  # 128 + SIGINT
EXIT_INTERRUPTED = 143  # 128 + SIGTERM


class RolloutError(Exception):
    """Base of all errors of the engine."""

    exit_code = EXIT_FAILED


class InputError(RolloutError):
    """What the job was handed is wrong; the same job will fail again."""


class ConfigError(InputError, ValueError):
    """A parameter is wrong; raised where the parameter is given."""

    exit_code = EXIT_BAD_ARGUMENTS


class ShardError(InputError):
    """An input shard is missing, has changed since the plan was made, or cannot be read."""


class BadRowError(InputError):
    """One row of a shard is not a document, and ``on_bad_row`` is "fail"."""


class InferenceError(RolloutError):
    """One generate call ended without a result.

    Attributes:
        status: HTTP status of the last answer, or None when there was none.
        attempts: how often the request was sent.
        retry_after_s: what the server asked for, in seconds, or None.
        payload_sha256: SHA-256 of the final payload, as hex; None before ``generate`` has named it.
    """

    def __init__(
        self, message: str, *, status: int | None = None, attempts: int = 1, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.attempts = attempts
        self.retry_after_s = retry_after_s
        self.payload_sha256: str | None = None


class BadRequestError(InferenceError):
    """The server refused this payload; it will never succeed."""


class RequestRejectedError(InferenceError):
    """The server refused for now: 408, 409, 425, 429 or 5xx."""


class EndpointUnavailableError(InferenceError):
    """No connection to the server, or the connection broke before the answer was whole."""


class RequestTimeoutError(InferenceError):
    """No answer within ``request_timeout``."""


class MalformedResponseError(InferenceError):
    """The server answered 200 with something that is not a completion."""


class TruncatedError(InferenceError):
    """The answer stopped at the token limit, and ``on_truncated`` is not "keep"."""


class QuarantinedError(InferenceError):
    """The request was in flight whenever a server died, and is not sent again."""


class ServerError(RolloutError):
    """A model server that the job owns."""


class ServerStartError(ServerError):
    """The server did not become ready; the message holds the tail of its log."""


class ServerExitedError(ServerError):
    """The server died more often than it may be restarted."""


class StoreError(RolloutError):
    """Durable state cannot be reached or cannot be trusted."""


class ObjectNotFoundError(StoreError):
    """The key does not exist."""


class ObjectExistsError(StoreError):
    """A create-only write found the key taken."""


class ObjectChangedError(StoreError):
    """A conditional write found another version than the one it was to replace."""


class CheckpointError(StoreError):
    """State exists but cannot be read; it is never treated as absent."""


class FingerprintMismatchError(CheckpointError):
    """The state was written by a job with another configuration or another input."""


class RequestCacheError(StoreError):
    """The local request cache cannot be written."""


class ManifestError(StoreError):
    """Documents in is not written + failed + dropped; the manifest is not written."""


class FencedError(RolloutError):
    """A newer attempt owns this output; nothing more may be written by this one."""

    exit_code = EXIT_FENCED


class AttemptActiveError(RolloutError):
    """Another attempt is at work on this output."""

    exit_code = EXIT_FENCED


class FailureBudgetError(RolloutError):
    """More documents failed than the failure budget allows."""


class EngineFaultError(RolloutError):
    """Something inside the engine failed that never should; the job ends, so that no document is recorded as failed for it."""


class JobStoppedError(RolloutError):
    """The job was asked to stop; its state is resumable."""

    exit_code = EXIT_INTERRUPTED


class JobInterruptedError(JobStoppedError):
    """A signal stopped the job."""


class JobCancelledError(JobStoppedError):
    """The job's user stopped it."""


def primary_cause(error: BaseException) -> BaseException:
    """The error that a group of errors stands for: being fenced before all, then a stop, then our own, then any."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [primary_cause(inner) for inner in error.exceptions]
    for kind in (FencedError, JobStoppedError, RolloutError, Exception):
        for cause in causes:
            if isinstance(cause, kind):
                return cause
    return causes[0]
