"""Client of the daemon's HTTP API: finds the daemon, asks it, and explains why it does not answer.

A daemon listens on a Unix socket in its state folder. That folder, or a port, may since have been taken over by a
hostile program, so answers are bounded in bytes and in time.
"""

from __future__ import annotations

import dataclasses
import json
import re
import socket
import stat
import struct
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from wslgpud.security import http_client, safe_files
from wslgpud.words import MessageError, cause, current

#: the socket of a running daemon in its state folder
SOCKET = "control.sock"
#: Prometheus' sample name -> (labels, value) of each series
Values = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
_ESCAPE = re.compile(r"\\(.)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
#: limit for a whole answer
SECONDS = 3.0
#: limit for an answer; a year of a hundred series takes 10 MB
MAX_BYTES = 64 << 20


class Unanswered(MessageError):
    """The daemon gave no usable answer; the message names it and the remedy."""


@dataclass(frozen=True)
class DaemonClient:
    """A daemon's address, such as ``http://127.0.0.1:9655``, or the Unix socket of one on this machine."""

    url: str
    path: Path | None = None

    @classmethod
    def of(cls, folder: Path) -> DaemonClient | None:
        """Return the daemon of a state folder; None if none runs there."""
        path = folder / SOCKET
        with suppress(OSError):
            return cls(str(path), path) if stat.S_ISSOCK(path.stat().st_mode) else None
        return None

    def pid(self) -> int | None:
        """Return the process that listens on the socket, by the kernel's word; None where none does."""
        with suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(SECONDS)
            with safe_files.socket_address(self.path or Path()) as address:
                asking.connect(address)
            return int(struct.unpack("iII", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
        return None

    def status(self) -> dict[str, Any]:
        """Return the status document in this command's language; before the first sample it has no ``at``.

        Raises Unanswered: it does not answer.
        """
        document = self.ask("/api/v1/status", lang=current().code)
        # One elsewhere names itself localhost.
        named = {} if self.path is None else document
        return {"seen_by": "daemon", **document, "url": str(named.get("url", self.url))}

    def ask(self, path: str, **query: Any) -> dict[str, Any]:
        """Return the answer of the API. Raises Unanswered: it does not answer."""
        return self._exchange(f"{path}?{urllib.parse.urlencode(query, doseq=True)}" if query else path)

    def post(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Have a daemon on this machine do something. Raises Unanswered: it does not."""
        return self._exchange(path, json.dumps(document).encode())

    def _exchange(self, target: str, data: bytes | None = None) -> dict[str, Any]:
        try:
            answer = http_client.exchange(self._address(target), data, deadline_seconds=SECONDS, max_bytes=MAX_BYTES)
        except (ValueError, http_client.ErrorStatus, http_client.Unreachable) as error:
            if isinstance(error.__cause__, PermissionError) or getattr(error, "status", None) == HTTPStatus.FORBIDDEN:
                raise Unanswered("the daemon at {url} is another user's: use sudo", url=self.url) from error
            if isinstance(error, http_client.ErrorStatus):
                raise Unanswered("the daemon at {url} refuses: {why}", url=self.url, why=cause(error)) from error
            raise Unanswered("the daemon at {url} does not answer: {why}", url=self.url, why=cause(error)) from error
        try:
            return safe_files.parsed(answer)
        except ValueError as error:
            raise self.stranger(error) from error

    def stranger(self, error: Exception) -> Unanswered:
        """Return the error for an answer that makes no sense."""
        return Unanswered("the server at {url} is not wslgpud: {why}", url=self.url, why=cause(error))

    def _address(self, target: str) -> http_client.Address:
        if self.path is not None:
            return http_client.Address("http", "localhost", None, target, socket=str(self.path))
        return dataclasses.replace(http_client.parsed(self.url), target=target)


def answering(folders: Iterable[Path], complain: Callable[[str], None]) -> tuple[DaemonClient, dict[str, Any]] | None:
    """Return the first daemon that answers, and its status.

    A daemon whose socket does not answer was killed or hangs, which differs from one never started: it is reported.
    """
    for daemon in filter(None, map(DaemonClient.of, folders)):
        try:
            document = daemon.status()
            return dataclasses.replace(daemon, url=document["url"]), document
        except Unanswered as error:
            complain(current().text(error.message))
    return None


def besides(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a verdict in JSON as people read it beside a lost job, which tells of the kill already."""
    return {**said, "headline": said["calm"], "byline": None} if "calm" in said else said


def in_one_line(said: Mapping[str, Any]) -> str:
    """Return headline and byline of a verdict in JSON, in one line, and a lost job that nobody has seen yet."""
    beside = besides(said)
    now, lost = (beside["headline"], beside.get("byline")), (said.get("lost", {}).get("headline"),)
    return " · ".join(filter(None, (*lost, *now) if said.get("state") == "killed" else (*now, *lost)))


def read_values(known: Mapping[str, float]) -> Values:
    """Parse the values of ``/api/v1/latest``, whose names are in Prometheus' notation."""
    values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for name, value in known.items():
        sample, _, inside = name.partition("{")
        labels = {
            key: _ESCAPE.sub(lambda e: "\n" if e[1] == "n" else e[1], text) for key, text in _LABEL.findall(inside)
        }
        values.setdefault(sample, []).append((labels, float(value)))
    return values
