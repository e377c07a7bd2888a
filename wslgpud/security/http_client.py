"""HTTP requests to servers that may be hostile: the only client for everything this process fetches or posts.

A request is bounded as a whole, in time and in bytes, however slowly or endlessly the server answers. It goes
to the configured address and nowhere else: no redirect is followed, no proxy of the environment is asked, and
nothing is decompressed.
"""

from __future__ import annotations

import errno
import http.client
import io
import os
import socket
import ssl
import time
import urllib.parse
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wslgpud.words import MessageLike, cause, say
from wslgpud.words.units import one_line

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: of status lines and headers together; bodies may come in chunks, whose frames take a quarter at most
_HEAD_BYTES = 1 << 16
#: characters of a refusal that are kept
_SAID_CHARACTERS = 200
_DEFAULT_PORTS = {"http": 80, "https": 443}
#: headers whose values are no secret even when a server sends them back
_PUBLIC = frozenset({"accept-encoding", "connection", "content-type", "host", "user-agent"})


class Unreachable(Exception):  # a state of the network
    """No usable answer came; one line that says why."""


class Refused(Exception):  # the server's answer
    """The server answered with a status that is no success."""

    def __init__(self, status: int, said: MessageLike) -> None:
        plain = say("answered {status}", status=status)
        super().__init__(say("answered {status}: {told}", status=status, told=said) if said else plain)
        self.status = status


@dataclass(frozen=True, slots=True)
class Address:
    """An HTTP address, its user and password apart from what may be shown."""

    scheme: str
    host: str
    port: int | None
    target: str
    authorization: str = field(default="", repr=False)
    #: path of the Unix socket behind which the server is, in place of host and port
    socket: str = ""

    @property
    def place(self) -> str:
        """Return host and port as the address has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def parsed(url: str) -> Address:
    """Parse a URL. Raises ValueError if it is not HTTP, without quoting it, since it may hold a password."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError(say("not an address like http://127.0.0.1:9093"))
    authorization = ""
    if parts.username is not None:
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        authorization = "Basic " + b64encode(pair.encode()).decode()
    target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    return Address(parts.scheme, parts.hostname, parts.port, target, authorization)


def exchange(
    address: Address,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    deadline_seconds: float,
    most_bytes: int,
) -> bytes:
    """Send a GET, or a POST where there is ``data``, and return the body of the answer, at most ``most_bytes``.

    The deadline counts from the connection to the last byte; only the resolver of names has a limit of its own.

    Raises:
        Refused: the server answered anything but a success; redirects count as that.
        Unreachable: there was no whole answer in time, or it is too large or no HTTP.
    """
    sent = {"Host": address.place, "Accept-Encoding": "identity", "Connection": "close", **(headers or {})}
    if address.authorization:
        sent["Authorization"] = address.authorization
    wire = _Wire(time.monotonic() + deadline_seconds)
    connection = http.client.HTTPConnection(address.host, address.port)
    connection.sock = wire
    try:
        wire.connect(address)
        connection.request("GET" if data is None else "POST", address.target, data, sent)
        answer = connection.getresponse()
        wire.allow(most_bytes + most_bytes // 4)
        body = answer.read(most_bytes + 1)
        if not 200 <= answer.status < 300:
            raise Refused(answer.status, _said(answer.status, body, sent))
        if len(body) > most_bytes:
            raise Unreachable(say("it answered more than {most_bytes}", most_bytes=most_bytes))
        if answer.length:
            raise Unreachable(say("its answer breaks off"))
    except TimeoutError as error:
        late = say("no whole answer within {limit_seconds}", limit_seconds=deadline_seconds)
        raise Unreachable(late) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unreachable(cause(error) or type(error).__name__) from error
    finally:
        wire.hang_up()
    return body


def _said(status: int, body: bytes, sent: Mapping[str, str]) -> MessageLike:
    """Return what a refusal says, without what we sent in confidence: some servers send it back."""
    if 300 <= status < 400:
        return say("it redirects, which is not followed; configure the address that it leads to")
    said = body[: 8 * _SAID_CHARACTERS].decode("utf-8", "replace")
    for name, value in sent.items():
        if name.lower() not in _PUBLIC:
            for secret in (value, *value.split()):
                said = said.replace(secret, "***")
    return one_line(said, _SAID_CHARACTERS)


class _Wire(io.RawIOBase):
    """Stands in for the socket of ``http.client``: every wait ends at the deadline, bytes are counted."""

    def __init__(self, until_mono: float) -> None:
        self._until = until_mono
        self._bytes_left = _HEAD_BYTES
        self._socket: socket.socket | None = None

    def connect(self, address: Address) -> None:
        if address.socket:
            self._open(socket.AF_UNIX, address.socket)
            return
        failure = OSError(say("has no address"))
        port = address.port or _DEFAULT_PORTS[address.scheme]
        for family, _, _, _, place in socket.getaddrinfo(address.host, port, 0, socket.SOCK_STREAM):
            try:
                plain = self._open(family, place)
                if address.scheme == "https":
                    plain.settimeout(self._seconds_left())
                    context = ssl.create_default_context()
                    self._socket = context.wrap_socket(plain, server_hostname=address.host)
            except TimeoutError:
                raise
            except OSError as error:
                self.hang_up()
                failure = error
            else:
                return
        raise failure

    def _open(self, family: int, place: Any) -> socket.socket:
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.settimeout(self._seconds_left())
        self._socket.connect(place)
        return self._socket

    def allow(self, count: int) -> None:
        """Take so many bytes more."""
        self._bytes_left += count

    def sendall(self, data: Any) -> None:
        left = memoryview(data)
        while left:
            left = left[self._ready().send(left) :]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        count = self._ready().recv_into(buffer)
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise OSError(say("it sends too much"))
        return count

    def makefile(self, *_: object) -> io.BufferedReader:
        return io.BufferedReader(self)

    def close(self) -> None:
        """Stay open: ``http.client`` closes the socket before the answer is read."""

    def hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _ready(self) -> socket.socket:
        if self._socket is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        self._socket.settimeout(self._seconds_left())
        return self._socket

    def _seconds_left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
