"""The daemon as its clients see it: its address, its answers, and why there is none.

It is found by the note in its state folder, and speaks HTTP: behind a port, or behind a Unix socket in that
folder where the port asks for a password. Whoever has its port or its folder by now may be hostile; an answer
is bounded in bytes and in time.
"""

from __future__ import annotations

import dataclasses
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wslgpud.security import http_client, safe_files
from wslgpud.words import MessageError, cause, current

#: the address file that a running daemon keeps in its state folder
NOTE = "daemon.json"
#: for a whole answer
SECONDS = 3.0
#: of an answer; a year of a hundred series has 10 MB
MOST_BYTES = 64 << 20


class Unanswered(MessageError):
    """There is no usable answer; one line that names the daemon and the remedy."""


@dataclass(frozen=True)
class DaemonClient:
    """A daemon's address, such as ``http://127.0.0.1:9655``, and the socket that this machine's own ask."""

    url: str
    socket: Path | None = None

    def status(self) -> dict[str, Any]:
        """Return the status document in this command's language; before the first sample it has no ``at``.

        Raises Unanswered: it does not answer.
        """
        document = self.ask("/api/v1/status", lang=current().code)
        return {"seen_by": "daemon", "url": self.url, **document}

    def ask(self, path: str, **query: Any) -> dict[str, Any]:
        """Return the answer of the API. Raises Unanswered: it does not answer."""
        target = f"{path}?{urllib.parse.urlencode(query, doseq=True)}" if query else path
        try:
            answer = http_client.exchange(self._address(target), deadline_seconds=SECONDS, most_bytes=MOST_BYTES)
        except (ValueError, http_client.ErrorStatus, http_client.Unreachable) as error:
            if isinstance(error.__cause__, PermissionError):
                raise Unanswered("the daemon at {url} is another user's: ask it with sudo", url=self.url) from error
            raise Unanswered("the daemon at {url} does not answer: {why}", url=self.url, why=cause(error)) from error
        try:
            return safe_files.parsed(answer)
        except ValueError as error:
            raise self.stranger(error) from error

    def stranger(self, error: Exception) -> Unanswered:
        """Return what to raise where the answer makes no sense."""
        return Unanswered("what answers at {url} is not wslgpud: {why}", url=self.url, why=cause(error))

    def _address(self, target: str) -> http_client.Address:
        if self.socket is not None:
            return http_client.Address("http", "localhost", None, target, socket=str(self.socket))
        return dataclasses.replace(http_client.parsed(self.url), target=target)


def noted(folders: Iterable[Path]) -> Iterator[DaemonClient]:
    """Yield the daemons that have left a note in one of their state folders."""
    for folder in folders:
        try:
            note = safe_files.parsed(safe_files.contents(folder / NOTE))
            url = str(note["url"])
        except (OSError, ValueError, KeyError):
            continue
        yield DaemonClient(url, folder / Path(str(note["socket"])).name if "socket" in note else None)


def answering(folders: Iterable[Path], complain: Callable[[str], None]) -> tuple[DaemonClient, dict[str, Any]] | None:
    """Return the first daemon that answers, and its status.

    One that left a note and is silent was killed or hangs, which is not the same as that none was started:
    it is complained of.
    """
    for daemon in noted(folders):
        try:
            return daemon, daemon.status()
        except Unanswered as error:
            complain(current().text(error.said))
    return None


def in_one_line(said: Mapping[str, Any]) -> str:
    """Return what a verdict as JSON says: its headline and byline."""
    return " · ".join(filter(None, (said["headline"], said.get("byline"))))
