"""The only HTTP client of this process, for servers that may be hostile.

Each request is bounded as a whole, in time and in bytes, however slowly or endlessly the server answers. It goes only
to the configured address: redirects are not followed, proxies of the environment are not used, and nothing is
decompressed.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
import urllib.parse
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11

from wslgpud.security import safe_files
from wslgpud.words import MessageError, MessageLike, cause, say
from wslgpud.words.units import one_line

#: size limit of status line and headers; for chunked bodies, framing takes a quarter at most
_HEAD_BYTES = 1 << 16
#: characters of an error response that are kept
_SAID_CHARACTERS = 200
_DEFAULT_PORTS = {"http": 80, "https": 443}
#: headers whose values are not secret even if a server echoes them
_PUBLIC = frozenset({"accept-encoding", "connection", "content-length", "content-type", "host", "user-agent"})


class Unreachable(MessageError):  # a network condition
    """There was no usable answer; the message says why."""


class ErrorStatus(MessageError):  # the server's answer
    """The server answered with an error status."""

    def __init__(self, status: int, text: MessageLike) -> None:
        plain = say("answered {status}", status=status)
        super().__init__(say("answered {status}: {told}", status=status, told=text) if text else plain)
        self.status = status


@dataclass(frozen=True, slots=True)
class Address:
    """An HTTP address; user and password are separate from the part that may be shown."""

    scheme: str
    host: str
    port: int | None
    target: str
    authorization: str = field(default="", repr=False)
    #: path of the server's Unix socket, instead of host and port
    socket: str = ""

    @property
    def place(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def parsed(url: str) -> Address:
    """Parse a URL. Raises ValueError if it is not HTTP, without quoting it, as it may hold a password."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # whose text may be half a password: one with a slash in it looks like a port
        host = port = None
    if not host or parts.scheme not in _DEFAULT_PORTS:
        raise ValueError(say("not an address like http://127.0.0.1:9093"))
    authorization = ""
    if parts.username is not None:
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        authorization = "Basic " + b64encode(pair.encode()).decode()
    target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    return Address(parts.scheme, host, port, target, authorization)


def exchange(
    address: Address,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    deadline_seconds: float,
    max_bytes: int,
) -> bytes:
    """Send a GET, or a POST if there is ``data``, and return the body of the answer, at most ``max_bytes``.

    The deadline covers everything from connecting to the last byte; only name resolution has its own limit.

    Raises:
        ErrorStatus: the server answered with anything but success; redirects count as errors.
        Unreachable: there was no complete answer in time, or it is too large or not HTTP.
    """
    sent = {"Host": address.place, "Accept-Encoding": "identity", "Connection": "close", **(headers or {})}
    if address.authorization:
        sent["Authorization"] = address.authorization
    if data is not None:
        sent["Content-Length"] = str(len(data))
    until = time.monotonic() + deadline_seconds
    try:
        wire = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        fields = [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]
        request = h11.Request(method="GET" if data is None else "POST", target=address.target, headers=fields)
        parts = (wire.send(part) or b"" for part in (request, h11.Data(data=data or b""), h11.EndOfMessage()))
        data = b"".join(parts)
        with contextlib.closing(_connected(address, until)) as sock:
            status, body, complete = _answer(sock, data, wire, until, max_bytes)
    except TimeoutError as error:
        raise Unreachable("no complete answer within {limit_seconds}", limit_seconds=deadline_seconds) from error
    except h11.LocalProtocolError as error:  # without its text, which quotes the request
        raise Unreachable(say("a header or the path has characters that HTTP does not allow")) from error
    except h11.RemoteProtocolError as error:
        raise Unreachable(say("its answer is not HTTP")) from error
    except (OSError, ValueError) as error:
        raise Unreachable(cause(error) or type(error).__name__) from error
    if not 200 <= status < 300:
        raise ErrorStatus(status, _error_text(status, body, sent))
    if len(body) > max_bytes:
        raise Unreachable("it answered more than {most_bytes}", most_bytes=max_bytes)
    if not complete:
        raise Unreachable(say("its answer is incomplete"))
    return body


def _connected(address: Address, until_mono: float) -> socket.socket:
    """Return a connection to the first reachable IP of an address. Raises OSError: none is."""
    if address.socket:
        with safe_files.socket_address(Path(address.socket)) as short:
            return _first([(socket.AF_UNIX, short)], address, until_mono)
    port = address.port or _DEFAULT_PORTS[address.scheme]
    addresses = socket.getaddrinfo(address.host, port, 0, socket.SOCK_STREAM)
    return _first([(family, place) for family, _, _, _, place in addresses], address, until_mono)


def _first(places: Iterable[tuple[int, Any]], address: Address, until_mono: float) -> socket.socket:
    failure = OSError(say("has no address"))
    for family, place in places:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            _until(sock, until_mono).connect(place)
            if address.scheme == "https":
                context = ssl.create_default_context()
                sock = context.wrap_socket(_until(sock, until_mono), server_hostname=address.host)
        except OSError as error:
            sock.close()
            if isinstance(error, TimeoutError):
                raise
            failure = error
        else:
            return sock
    raise failure


def _answer(
    sock: socket.socket, request: bytes, wire: h11.Connection, until_mono: float, max_bytes: int
) -> tuple[int, bytes, bool]:
    """Send a request; return the status, little more than ``max_bytes`` of the body, and whether it is complete."""
    left = memoryview(request)
    while left:
        left = left[_until(sock, until_mono).send(left) :]
    status, body, bytes_left = 0, bytearray(), _HEAD_BYTES
    while len(body) <= max_bytes:
        try:
            event = wire.next_event()
        except h11.RemoteProtocolError:
            if not status:
                raise
            return status, bytes(body), False
        if event is h11.NEED_DATA:
            data = _until(sock, until_mono).recv(_HEAD_BYTES)
            bytes_left -= len(data)
            if bytes_left < 0:
                raise OSError(say("its answer is too large"))
            wire.receive_data(data)
        elif isinstance(event, h11.Response):
            status = event.status_code
            bytes_left += max_bytes + max_bytes // 4
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return status, bytes(body), True
    return status, bytes(body), False


def _until(sock: socket.socket, until_mono: float) -> socket.socket:
    """Return the socket with its timeout set to the deadline. Raises TimeoutError: it has passed."""
    if (left := until_mono - time.monotonic()) <= 0:
        raise TimeoutError
    sock.settimeout(left)
    return sock


def _error_text(status: int, body: bytes, sent: Mapping[str, str]) -> MessageLike:
    """Return the text of an error response, without our secrets: some servers echo them."""
    if 300 <= status < 400:
        return say("it redirects, which is not followed; configure the address that it leads to")
    text = body[: 8 * _SAID_CHARACTERS].decode("utf-8", "replace")
    with contextlib.suppress(ValueError, KeyError):  # RFC 9457: as our own daemon explains
        text = str(safe_files.parsed(text)["detail"])
    for name, value in sent.items():
        if name.lower() not in _PUBLIC:
            for secret in (value, *value.split()):
                text = text.replace(secret, "***")
    return one_line(text, _SAID_CHARACTERS)
