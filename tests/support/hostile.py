"""Servers on loopback that do their clients harm, each behaviour by its name."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import trustme

Behaviour = Callable[["Peer"], None]


class Peer:
    """One client that is connected."""

    def __init__(self, connection: socket.socket, over: threading.Event) -> None:
        self.connection = connection
        self.over = over

    def say(self, data: bytes) -> None:
        self.connection.sendall(data)

    def for_ever(self, data: bytes, pause_seconds: float = 0.0) -> None:
        """Send it again and again, until the client has left or the test is over."""
        while not self.over.is_set():
            self.say(data)
            if pause_seconds:
                self.over.wait(pause_seconds)

    def silence(self) -> None:
        self.over.wait()


class Hostile:
    """A server that behaves badly to everybody who connects."""

    def __init__(self, behaviour: Behaviour, tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[bytes] = []
        self._behaviour, self._tls = behaviour, tls
        self._over = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.place = f"127.0.0.1:{self.port}"
        self.url = f"{'https' if tls else 'http'}://{self.place}"
        threading.Thread(target=self._serve, daemon=True).start()

    def behave(self, behaviour: Behaviour) -> None:
        """Behave like this from now on."""
        self._behaviour = behaviour

    def close(self) -> None:
        self._over.set()
        # Closing alone does not wake the thread that accepts.
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._meet, args=(connection,), daemon=True).start()

    def _meet(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            if self._tls is None:
                self._behaviour(Peer(connection, self._over))
                return
            with self._tls.wrap_socket(connection, server_side=True) as wrapped:
                self._behaviour(Peer(wrapped, self._over))

    def http(self, behaviour: Behaviour) -> Behaviour:
        """Take one request, keep it, then behave."""

        def after_a_request(peer: Peer) -> None:
            self.asked.append(_request(peer.connection))
            behaviour(peer)

        return after_a_request


def _request(connection: socket.socket) -> bytes:
    """Return head and body of a request."""
    got = b""
    while b"\r\n\r\n" not in got and (part := connection.recv(1 << 16)):
        got += part
    head, _, body = got.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    while len(body) < length and (part := connection.recv(1 << 16)):
        body += part
    return head + b"\r\n\r\n" + body


@contextmanager
def hostile(behaviour: Behaviour, tls: ssl.SSLContext | None = None) -> Iterator[Hostile]:
    """Run a server that treats every HTTP request like this."""
    server = Hostile(behaviour, tls)
    server.behave(server.http(behaviour))
    try:
        yield server
    finally:
        server.close()


@contextmanager
def rude(behaviour: Behaviour) -> Iterator[Hostile]:
    """Run a server that behaves like this from the moment somebody connects."""
    server = Hostile(behaviour)
    try:
        yield server
    finally:
        server.close()


def says(data: bytes) -> Behaviour:
    return lambda peer: peer.say(data)


def answers(status: str, body: bytes = b"", **headers: str) -> Behaviour:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return says("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


def _after(data: bytes, more: bytes, pause_seconds: float = 0.0) -> Behaviour:
    def do(peer: Peer) -> None:
        peer.say(data)
        peer.for_ever(more, pause_seconds)

    return do


OK = b"HTTP/1.1 200 OK\r\n"
DRIP_SECONDS = 0.05
UNPACKED_BYTES = 50 << 20
BOMB = gzip.compress(bytes(UNPACKED_BYTES), 9)
#: a line of a log, and what a terminal would obey
ESCAPES = b"\x1b]0;owned\x07\x1b[2J\r\nroot: nothing to see\xe2\x80\xae\r\n" * 500

#: that never come to an end; a client needs a deadline for the whole
ENDLESS: Mapping[str, Behaviour] = {
    "silence": Peer.silence,
    "a dripping status line": _after(b"HTTP/1.1 2", b"0", DRIP_SECONDS),
    "dripping headers": _after(OK, b"X: y\r\n", DRIP_SECONDS),
    "a dripping body": _after(OK + b"\r\n", b"#", DRIP_SECONDS),
    "dripping chunks": _after(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n#\r\n", DRIP_SECONDS),
    "a body that was announced and does not come": _after(OK + b"Content-Length: 9\r\n\r\n", b"", DRIP_SECONDS),
    "continue, continue": _after(b"", b"HTTP/1.1 100 Continue\r\n\r\n", DRIP_SECONDS),
}
#: that send as fast as the client takes it; a client needs a limit of size
FLOODS: Mapping[str, Behaviour] = {
    "headers": _after(OK, b"X: " + b"y" * 1000 + b"\r\n"),
    "one header": _after(OK + b"X: ", b"y" * 65536),
    "continue": _after(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "body": _after(OK + b"\r\n", b"# flood\n" * 8192),
    "chunks": _after(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"#" * 65536 + b"\r\n"),
    "chunk of a petabyte": _after(OK + b"Transfer-Encoding: chunked\r\n\r\n4000000000000\r\n", b"#" * 65536),
    "petabyte announced": _after(OK + b"Content-Length: 1125899906842624\r\n\r\n", b"#" * 65536),
    "trailers": _after(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 1000),
}
#: that end, and are no answer
NONSENSE: Mapping[str, Behaviour] = {
    "nothing": says(b""),
    "no HTTP": says(ESCAPES),
    "a status of no number": says(b"HTTP/1.1 \x1b[2Jok\r\n\r\n"),
    "half of a body": says(OK + b"Content-Length: 1000\r\n\r\nwindows_memory_available_bytes 1\n"),
    "half of a chunk": says(OK + b"Transfer-Encoding: chunked\r\n\r\nff\r\nwindows_memory"),
    "a chunk of no number": says(OK + b"Transfer-Encoding: chunked\r\n\r\n\x1b[2J\r\n"),
}
#: that refuse, and try to be written down
REFUSALS: Mapping[str, Behaviour] = {
    "who are you": answers("401 Unauthorized", WWW_Authenticate='Basic realm="x"'),
    "proxy wants a password": answers("407 Proxy Authentication Required", Proxy_Authenticate="Basic"),
    "escapes": answers("500 \x1b[2J", ESCAPES),
    "a bomb": answers("503 later", BOMB, Content_Encoding="gzip"),
}
#: Locations to which no client may go
ELSEWHERE = {
    "a file": "file:///etc/passwd",
    "the cloud's metadata": "http://169.254.169.254/latest/meta-data/",
    "another scheme": "ftp://127.0.0.1/",
    "data": "data:text/plain,windows_memory_available_bytes%201",
    "itself": "/",
    "another host": "http://{other}/stolen",
}


def certificate(*names: str, expired: bool = False) -> tuple[ssl.SSLContext, trustme.CA]:
    """Return the TLS context of a server with this name, and the authority that signed it."""
    from datetime import datetime, timezone

    authority = trustme.CA()
    past = {"not_before": datetime(2020, 1, 1, tzinfo=timezone.utc)} if expired else {}
    end = {"not_after": datetime(2021, 1, 1, tzinfo=timezone.utc)} if expired else {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names, **past, **end).configure_cert(context)
    return context, authority
