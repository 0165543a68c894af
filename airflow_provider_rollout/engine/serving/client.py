"""One request to one replica. Every foreign error of the network ends here.

Receives: WireRequests.        Hands on: InferenceResults, or InferenceErrors by type and status.
Invariants: connections are kept and never shared by two requests; a cancelled request closes its connection, so that the server stops
generating. ``attempts`` of an EndpointUnavailableError is 0 when the request never reached the server. No key is in any message.
Source: aiohttp client reference; uvicorn closes idle connections after 5 s, its ``timeout_keep_alive``.
"""

from __future__ import annotations

import asyncio
import io
import re
import socket
import ssl
import sys
import time
import urllib.request
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson
from yarl import URL

from airflow_provider_rollout.engine.exceptions import (
    EndpointUnavailableError,
    InferenceError,
    MalformedResponseError,
    RequestTimeoutError,
)
from airflow_provider_rollout.engine.result import InferenceResult
from airflow_provider_rollout.engine.serving.retry import parse_retry_after
from airflow_provider_rollout.engine.serving.wire import WireRequest, read_answer, refusal

__all__ = ["EndpointClient", "ModelsAnswer", "api_base"]

_CONNECT_TIMEOUT_S = 10.0
_PROBE_TIMEOUT_S = 10.0  # a busy API server answers /v1/models late, but it answers
_IDLE_HTTP_S = 3.0  # below uvicorn's 5 s: a connection that the server is about to close is not used again
_IDLE_HTTPS_S = 15.0  # gateways keep longer, and a handshake costs more
_LARGE_BODY_BYTES = 2**20  # above it aiohttp wants a file object, and writes in pieces
# All headers are given: aiohttp rebuilds a request's headers to leave out its own ones, and answers are not to be compressed.
_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "User-Agent": "airflow-rollout",
}
_VERSION_SEGMENT = re.compile(r"/v\d+\w*(/|\Z)")
_TOKEN_COUNTER = re.compile(rb"^[\w:]*(?:generation|prompt)_tokens_total(?:\{[^}]*\})? ([0-9.eE+]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ModelsAnswer:
    """What /v1/models said.

    Attributes:
        status: HTTP status.
        names: the models; empty when the body does not list any.
    """

    status: int
    names: tuple[str, ...] = ()


def api_base(url: str) -> URL:
    """The base of the API: the URL with ``/v1`` appended, unless its path names a version already.

    ``https://host/v1/chat/completions`` is taken for what was meant.
    """
    parsed = URL(url)
    path = parsed.path.rstrip("/")
    for ending in ("/chat/completions", "/completions", "/models"):
        path = path.removesuffix(ending)
    if not _VERSION_SEGMENT.search(path):
        path += "/v1"
    return parsed.with_path(path, keep_query=True, keep_fragment=False)


def _join(base: URL, path: str) -> URL:
    return base.with_path(base.path + path, keep_query=True)


class EndpointClient:
    """The connections to one replica; an async context manager."""

    def __init__(self, url: str, *, api_key: str | None, timeout_s: float | None, use_proxy: bool = True) -> None:
        self._base = api_base(url)
        self._root = self._base.with_path(_VERSION_SEGMENT.split(self._base.path)[0] + "/metrics")
        self.url = str(self._base.with_user(None).with_query(None))
        self._paths = {path: _join(self._base, path) for path in ("/chat/completions", "/completions")}
        self._api_key = api_key
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_TIMEOUT_S)
        self._timeout_s = timeout_s
        self._proxy = _proxy_for(self._base) if use_proxy else None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = self._open_session()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def abort(self) -> None:
        """Break every connection; requests in flight raise EndpointUnavailableError, later ones connect anew."""
        if self._session is not None:
            old, self._session = self._session, self._open_session()
            await old.close()

    async def complete(self, request: WireRequest) -> InferenceResult:
        """Send a request once.

        Raises:
            InferenceError: it has no result; see ``retry.is_retryable``.
        """
        body: bytes | io.BytesIO = request.body
        if len(request.body) > _LARGE_BODY_BYTES:
            body = io.BytesIO(request.body)
        try:
            response = await self._opened().post(self._paths[request.path], data=body, allow_redirects=False)
            data = await response.read()  # gives the connection back, or closes it if it is left halfway
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError, ssl.SSLError) as error:
            raise self._translated(error) from None
        if response.status == 200:
            return read_answer(data)
        if 300 <= response.status < 400:
            data = b"a redirect; correct the URL of the endpoint"
        wait_s = parse_retry_after(response.headers.get("Retry-After"), time.time())
        raise refusal(response.status, self._without_key(data), request, wait_s)

    async def models(self, *, with_key: bool = True) -> ModelsAnswer:
        """Ask which models the replica serves.

        Raises:
            InferenceError: there was no answer.
        """
        status, data = await self._get(_join(self._base, "/models"), with_key=with_key)
        try:
            entries = orjson.loads(data)["data"]
            names = tuple(str(entry["id"]) for entry in entries)
        except (orjson.JSONDecodeError, KeyError, TypeError):
            names = ()
        return ModelsAnswer(status, names)

    async def tokens_total(self) -> float | None:
        """Sum of the token counters in /metrics, or None when the replica has none."""
        try:
            status, data = await self._get(self._root, with_key=True)
        except InferenceError:
            return None
        found = _TOKEN_COUNTER.findall(data) if status == 200 else []
        return sum(map(float, found)) if found else None

    async def _get(self, url: URL, *, with_key: bool) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S)
        headers = None if with_key else {"Authorization": ""}
        try:
            async with self._opened().get(url, timeout=timeout, headers=headers, allow_redirects=False) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            raise self._translated(error) from None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise EndpointUnavailableError(f"the client of {self.url} is closed", attempts=0)
        return self._session

    def _open_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=_IDLE_HTTP_S if self._base.scheme == "http" else _IDLE_HTTPS_S,
            ttl_dns_cache=60,
            socket_factory=_keepalive_socket,
        )
        headers = {**_HEADERS, "Authorization": f"Bearer {self._api_key}"} if self._api_key else _HEADERS
        return aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            proxy=self._proxy,
        )

    def _without_key(self, data: bytes) -> bytes:
        return data.replace(self._api_key.encode(), b"[key]") if self._api_key else data

    def _translated(self, error: BaseException) -> InferenceError:
        """Ours for theirs; the name of theirs stays in the message."""
        name = type(error).__name__
        if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
            reason = error.strerror if isinstance(error, aiohttp.ClientConnectorError) else "timed out"
            return EndpointUnavailableError(f"cannot connect to {self.url}: {reason or name} ({name})", attempts=0)
        if isinstance(error, TimeoutError):
            return RequestTimeoutError(f"no answer from {self.url} within {self._timeout_s} s (request_timeout)")
        if isinstance(error, (aiohttp.ClientResponseError, aiohttp.InvalidURL)):
            return MalformedResponseError(f"{self.url} does not speak HTTP as it should ({name})")
        return EndpointUnavailableError(f"the connection to {self.url} broke before the answer was whole ({name})")


def _keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices a peer that is gone without a word, in about two minutes, however long the answer takes."""
    family, kind, protocol = address[:3]
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    return made


def _proxy_for(url: URL) -> str | None:
    """The proxy that the environment names for a host; looked up once, for a look-up per request would be dear."""
    if urllib.request.proxy_bypass(url.host or ""):
        return None
    return urllib.request.getproxies().get(url.scheme)
