"""What a rollout job is asked to do.

Receives: keyword arguments in a DAG, or a JSON object.        Hands on: frozen, checked objects.
Invariants: a wrong value, a wrong type or an unknown name raises ConfigError where the object is made, which is when a DAG is parsed.
``repr`` is safe to log. ``job_spec_bytes`` never holds a secret: a literal API key is refused there, a name is kept.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints

import msgspec

from airflow_provider_rollout.engine.exceptions import ConfigError

__all__ = [
    "DEFAULT_RECORDS_PER_CHUNK",
    "FailureBudget",
    "InferenceConfig",
    "JobSpec",
    "ReaderConfig",
    "is_environment_name",
    "job_spec_bytes",
    "job_spec_from_bytes",
    "resolve_api_key",
]

DEFAULT_RECORDS_PER_CHUNK = 6000  # datatrove's default; 4 to 20 MB of output for answers of 0.5 to 3 KB

# At least one underscore: "EMPTY", the customary placeholder key, is a value and not a name.
_ENVIRONMENT_NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+\Z")

Positive = Annotated[int, msgspec.Meta(ge=1)]
NonNegative = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Checked(msgspec.Struct, frozen=True, kw_only=True):
    """Checks every field against its annotation, and names from JSON against its fields.

    Structs, for each DAG file that is parsed pays for making the classes: 0.1 ms for those below, and 9 ms as dataclasses.
    """

    def __post_init__(self) -> None:
        for name, hint in _hints(type(self)).items():
            try:
                msgspec.structs.force_setattr(self, name, _convert(getattr(self, name), hint))
            except msgspec.ValidationError as error:
                known = get_args(hint) if get_origin(hint) is Literal else ()
                choices = f"; choose one of {', '.join(map(repr, known))}" if known else ""
                raise ConfigError(f"{type(self).__name__}.{name}: {error}{choices}") from None
        self._check()

    def _check(self) -> None:
        """Cross-field rules of the class."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from a JSON object.

        Raises:
            ConfigError: a name is unknown (the nearest known one is given), missing, or a value is wrong.
        """
        known = cls.__struct_fields__
        for name in values:
            if name not in known:
                import difflib  # noqa: PLC0415 - only for a name that is wrong; it takes milliseconds

                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
                raise ConfigError(f"{cls.__name__} has no parameter {name!r}{hint}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"{cls.__name__}: {error}") from None


@functools.cache
def _hints(kind: type[_Checked]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


def _convert(value: Any, hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, _Checked):
        if isinstance(value, hint):
            return value
        if isinstance(value, Mapping):
            return hint.from_dict(value)
        raise msgspec.ValidationError(f"expected {hint.__name__} or a dict, got {type(value).__name__}")
    return msgspec.convert(value, hint)


class InferenceConfig(_Checked, frozen=True, kw_only=True):
    """The model, its server and how to ask it. The first block bears the names of datatrove's InferenceConfig."""

    server_type: Literal["vllm", "sglang", "endpoint", "custom", "dummy"]
    """Which server answers; "endpoint" is one that runs already."""
    model_name_or_path: Text
    model_max_context: Positive = 8192
    """Longest prompt plus answer, in tokens."""
    use_chat: bool = True
    """Payloads go to /v1/chat/completions, else to /v1/completions."""
    endpoint_url: str | list[str] | None = None
    """Base URL or URLs, with or without ``/v1``; only for ``server_type="endpoint"``."""
    api_key: str | None = None
    """The key, or the NAME of an environment variable of the job that holds it (capitals with an underscore: ``OPENAI_API_KEY``)."""
    metric_interval: Seconds = 120.0
    """Seconds between two metric tables in the log."""
    tp: Positive = 1
    dp: Positive = 1
    pp: Positive = 1
    """Tensor, data and pipeline parallelism: GPUs per model shard, copies of the model, stages of it."""
    default_generation_params: dict[str, Any] = msgspec.field(default_factory=dict)
    """Added to each payload that does not set them: temperature, max_tokens, seed …"""
    rollouts_per_document: Positive = 1
    max_concurrent_generations: Positive = 500
    """Requests in flight at most."""
    max_concurrent_documents: Positive | None = None
    """Documents worked on at once; by default as many as requests, for a document has one request in flight at least."""
    request_timeout: Seconds | None = None
    """Seconds until one request is given up and retried; None waits as long as the server makes progress (``stall_timeout_sec``)."""
    model_kwargs: dict[str, Any] | None = None
    """Flags of the server, ``{"max_num_seqs": 256}`` for ``--max-num-seqs 256``; True for a bare flag, a list for many values."""
    server_log_folder: str | None = None
    """Where server logs go; by default the job's scratch folder. The tail of a log is in the error when a server fails."""
    master_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 9810
    server_start_timeout_sec: Seconds = 1800.0
    """Seconds until a starting server must be ready: weights of a large model load for many minutes."""
    server_ready_max_attempts: Positive | None = None
    """How often readiness is asked at most; by default as often as ``server_start_timeout_sec`` allows."""
    server_ready_delay_sec: Seconds = 0.5
    server_start_max_retries: NonNegative = 3
    """How often a server that failed or died is started again, per replica, without progress in between."""

    replicas: Positive = 1
    """Servers to start on this machine, each with ``tp * dp * pp`` GPUs."""
    trust_remote_code: bool = False
    """Run code that comes with the model."""
    server_command: list[str] | None = None
    """The program and its first arguments, instead of ``vllm serve`` or ``python -m sglang.launch_server``; all of it for "custom"."""
    server_env: dict[str, str] = msgspec.field(default_factory=dict)
    """Environment variables of the server; not for secrets, for it is part of the stored job spec."""
    max_request_attempts: Positive = 6
    """How often one request is sent before its rollout fails."""
    retry_backoff_base_sec: Seconds = 0.5
    retry_backoff_max_sec: Seconds = 60.0
    retry_after_max_sec: Seconds = 300.0
    """The longest Retry-After that is honoured."""
    stall_timeout_sec: Seconds | None = 600.0
    """Seconds without a completed request and without new tokens, while requests are in flight, until a server counts as hung."""
    on_truncated: Literal["keep", "retry", "fail"] = "keep"
    """What an answer with ``finish_reason="length"`` means."""
    adaptive_concurrency: bool = False
    """Find the number of requests in flight by additive increase, multiplicative decrease, up to ``max_concurrent_generations``."""

    def _check(self) -> None:
        if self.server_type == "endpoint" and not self.endpoint_urls:
            raise ConfigError(
                'InferenceConfig.endpoint_url: needed with server_type="endpoint"; give the base URL of the server'
            )
        if self.server_type != "endpoint" and self.endpoint_urls:
            raise ConfigError(
                f'InferenceConfig.endpoint_url: only for server_type="endpoint", not {self.server_type!r}; remove it or change server_type'
            )
        for url in self.endpoint_urls:
            if not url.startswith(("http://", "https://")):
                raise ConfigError(f"InferenceConfig.endpoint_url: {url!r} does not start with http:// or https://")
        if self.server_type == "custom" and not self.server_command:
            raise ConfigError(
                'InferenceConfig.server_command: needed with server_type="custom"; give the program and its arguments'
            )

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "api_key")
        return f"InferenceConfig({', '.join(fields)})"

    @property
    def endpoint_urls(self) -> tuple[str, ...]:
        """The endpoint or endpoints, as a tuple."""
        if self.endpoint_url is None:
            return ()
        return (self.endpoint_url,) if isinstance(self.endpoint_url, str) else tuple(self.endpoint_url)

    @property
    def documents_in_flight(self) -> int:
        """``max_concurrent_documents``, or its default."""
        return self.max_concurrent_documents or self.max_concurrent_generations


class FailureBudget(_Checked, frozen=True, kw_only=True):
    """How many documents may fail before the job does. None sets no limit.

    The default lets single bad documents pass and stops a job in which everything fails.
    """

    max_failed: NonNegative | None = None
    max_failed_share: Share | None = None
    """Of the documents that ended; looked at from 100 ended documents on, and at the end."""
    max_consecutive_failures: Positive | None = 100


class ReaderConfig(_Checked, frozen=True, kw_only=True):
    """How rows become documents."""

    text_field: Text = "text"
    id_field: Text = "id"
    """Rows without it get the hash of their content as id."""
    on_bad_row: Literal["fail", "skip"] = "fail"
    """A row that is no document ends the job, or is skipped and counted."""


class JobSpec(_Checked, frozen=True, kw_only=True):
    """All that one rollout job needs to know; its JSON form is what a launcher starts a job with."""

    job_id: Text
    """Names the launch, not the work: a resumed rank runs under a new job id. The cancel marker bears it."""
    source: list[Text]
    """URIs or globs of shards: JSONL, Parquet or CSV; plain, .gz or .zst."""
    output: Text
    """Folder or URI that receives the chunks."""
    config: InferenceConfig
    checkpoints: str | None = None
    """Folder or URI of the state; by default ``<output>/_rollout``."""
    rollout: str | None = None
    """``package.module:function`` or ``/path/file.py:function``; or else ``prompt_template``."""
    prompt_template: str | None = None
    """``{text}``, ``{id}`` and the names of metadata fields are filled in; ``{{`` is a brace."""
    system_prompt: str | None = None
    rollout_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    """Keyword arguments of the rollout function."""
    shared_context: str | None = None
    """``package.module:name`` of a dict, callable or context manager whose value is passed to the rollout function too."""
    rank: NonNegative = 0
    world_size: Positive = 1
    records_per_chunk: Positive = DEFAULT_RECORDS_PER_CHUNK
    output_format: Literal["parquet", "jsonl", "jsonl.zst"] = "parquet"
    metadata_key: Text = "rollout_results"
    """The column that holds the results."""
    reader: ReaderConfig = msgspec.field(default_factory=ReaderConfig)
    failure_budget: FailureBudget = msgspec.field(default_factory=FailureBudget)
    retry_failed: bool = False
    """Ask again for documents that failed in an earlier attempt."""
    on_config_change: Literal["refuse", "restart"] = "refuse"
    rerun_token: str | None = None
    """A token that the state does not know yet makes the job begin anew, whatever is done already."""
    attempt_lost_after_sec: Seconds = 60.0
    """Seconds without a heartbeat until an attempt of another machine may be taken over."""

    def _check(self) -> None:
        if not self.source:
            raise ConfigError("JobSpec.source: empty; give at least one URI or glob")
        if (self.rollout is None) == (self.prompt_template is None):
            raise ConfigError('JobSpec: give either rollout="package.module:function" or prompt_template="… {text} …"')
        if self.rollout is not None and self.system_prompt is not None:
            raise ConfigError(
                "JobSpec.system_prompt: only with prompt_template; a rollout function builds its own messages"
            )
        for name in ("rollout", "shared_context"):
            reference = getattr(self, name)
            if reference is not None and not re.fullmatch(r".+:[A-Za-z_][\w.]*", reference):
                raise ConfigError(
                    f"JobSpec.{name}: {reference!r} is not of the form package.module:name or /path/file.py:name"
                )
        if self.rank >= self.world_size:
            raise ConfigError(f"JobSpec.rank: {self.rank} is not below world_size {self.world_size}")
        if self.metadata_key in {"id", "text", "media", "metadata"}:
            raise ConfigError(
                f"JobSpec.metadata_key: {self.metadata_key!r} is a column of the document itself; choose another name"
            )

    @property
    def checkpoints_uri(self) -> str:
        """``checkpoints``, or its default below the output."""
        return self.checkpoints or f"{self.output.rstrip('/')}/_rollout"


def is_environment_name(value: str) -> bool:
    """Whether an ``api_key`` is the name of an environment variable and not a key."""
    return _ENVIRONMENT_NAME.match(value) is not None


def resolve_api_key(value: str | None) -> str | None:
    """The key that an ``api_key`` stands for.

    Raises:
        ConfigError: it names an environment variable that is not set.
    """
    if value is None or not is_environment_name(value):
        return value
    try:
        return os.environ[value]
    except KeyError:
        raise ConfigError(
            f"InferenceConfig.api_key names the environment variable {value}, which is not set for the job"
        ) from None


def job_spec_bytes(spec: JobSpec) -> bytes:
    """The stored form of a spec.

    Raises:
        ConfigError: the spec holds a literal API key, which must not be stored.
    """
    key = spec.config.api_key
    if key is not None and not is_environment_name(key):
        raise ConfigError(
            "InferenceConfig.api_key: a literal key cannot be stored with the job; "
            "give the name of an environment variable or use a connection"
        )
    return msgspec.json.encode(spec)


def job_spec_from_bytes(data: bytes) -> JobSpec:
    """Read a stored spec.

    Raises:
        ConfigError: it is not a job spec.
    """
    try:
        values = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ConfigError(f"the job spec is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError("the job spec is not a JSON object")
    return JobSpec.from_dict(values)
