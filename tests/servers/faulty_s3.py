"""A proxy in front of an S3 server that answers some requests wrongly, and a token service that gives out keys.

Receives: the address of a real server, and a script of faults.        Hands on: an address to use instead.
Invariant: what no fault matches passes through unchanged, so signatures stay valid.
"""

from __future__ import annotations

import http.client
import re
import ssl
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, parse_qs, urlsplit

_ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code} by test</Message></Error>'
_CREDENTIALS = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey><SessionToken>token-{number}</SessionToken>
<Expiration>{expiry}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""


@dataclass
class Fault:
    """What goes wrong, with which requests, how often.

    Attributes:
        request: regular expression over "METHOD /path?query".
        kind: "status" answers an error without asking the server; "error in 200" does so under status 200; "drop" closes the
            connection at once; "lost answer" does so after the server has acted; "hang" does not answer; "held answer" does not
            after the server has acted; "late" lets the server act after two seconds.
        times: how often; afterwards all is well.
        every: only each so-manieth of these requests.
        status: of kind "status".
        code: the S3 error code in the body.
    """

    request: str
    kind: Literal["status", "error in 200", "drop", "lost answer", "hang", "held answer", "late"]
    times: int = 1
    status: int = 503
    code: str = "SlowDown"
    every: int = 1
    matched: int = 0


@dataclass
class FaultyS3:
    """The proxy's script and what it has seen.

    Attributes:
        endpoint_url: where it listens.
        faults: the script; may be changed at any time.
        seen: "METHOD /path?query" of each request.
        tokens: session tokens that came with the requests.
        expired_tokens: those that are refused.
    """

    endpoint_url: str
    faults: list[Fault] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    expired_tokens: set[str] = field(default_factory=set)

    def next_fault(self, request: str) -> Fault | None:
        """The fault that this request meets."""
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.request, request):
                fault.matched += 1
                if fault.matched % fault.every == 0:
                    fault.times -= 1
                    return fault
        return None


@contextmanager
def run_faulty_s3(upstream_url: str, certificate: Path | None = None) -> Iterator[FaultyS3]:
    """Put the proxy in front of a server; with a certificate and its key in one PEM file, it speaks HTTPS."""
    script = FaultyS3("")
    stopping = threading.Event()
    settings = {"script": script, "upstream": urlsplit(upstream_url), "stopping": stopping}
    with _serving(type("Handler", (_FaultyHandler,), settings), certificate) as script.endpoint_url:
        try:
            yield script
        finally:
            stopping.set()


@contextmanager
def run_token_service(
    access_key_id: str, secret_access_key: str, *, life_s: float
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A token service that gives the same keys to every role; yields its address and the requests it gets."""
    seen: list[dict[str, str]] = []

    class Handler(_Quiet):
        def answer(self, body: bytes) -> None:
            seen.append({name: values[0] for name, values in parse_qs(body.decode()).items()})
            expiry = (datetime.now(UTC) + timedelta(seconds=life_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
            text = _CREDENTIALS.format(key=access_key_id, secret=secret_access_key, number=len(seen), expiry=expiry)
            self.reply(200, {"Content-Type": "text/xml"}, text.encode())

    with _serving(Handler) as url:
        yield url, seen


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that refuses the certificate or goes away is no news."""


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @abstractmethod
    def answer(self, body: bytes) -> None:
        """Answer one request."""

    def reply(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status)
        length = headers.get("Content-Length") if self.command == "HEAD" else None
        for name, value in headers.items():
            if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def handle_any(self) -> None:
        self.answer(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815 - the names that http.server calls

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _FaultyHandler(_Quiet):
    script: FaultyS3
    upstream: SplitResult
    stopping: threading.Event

    def answer(self, body: bytes) -> None:
        request = f"{self.command} {self.path}"
        self.script.seen.append(request)
        self.script.tokens.append(self.headers.get("x-amz-security-token", ""))
        if self.script.tokens[-1] in self.script.expired_tokens:
            self.reply(400, {}, _ERROR.format(code="ExpiredToken").encode())
            return
        fault = self.script.next_fault(request)
        match fault.kind if fault else None:
            case "drop":
                self.close_connection = True
            case "hang":
                self.stopping.wait(30)
                self.close_connection = True
            case "status" | "error in 200" if fault:
                text = _ERROR.format(code=fault.code).encode()
                self.reply(200 if fault.kind == "error in 200" else fault.status, {}, text)
            case kind:
                if kind == "late":
                    self.stopping.wait(2)
                status, headers, data = self.forward(body)
                if kind == "held answer":
                    self.stopping.wait(30)
                if kind in {"lost answer", "held answer"}:
                    self.close_connection = True
                else:
                    self.reply(status, headers, data)

    def forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.upstream.hostname or "", self.upstream.port, timeout=30)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in {"connection", "x-amz-security-token"}:
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, dict(answer.getheaders()), data
        finally:
            connection.close()


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler], certificate: Path | None = None) -> Iterator[str]:
    server = _Server(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
