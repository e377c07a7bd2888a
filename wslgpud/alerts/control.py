"""Silences and acknowledgements: what people tell the running daemon, in a small file beside its data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from wslgpud import documents
from wslgpud.words import Said, cause, say

FILE = "alerts.json"
_MOST = 200


@dataclass(frozen=True, slots=True)
class Silence:
    """No messages of a rule (``*``: any) for a resource (``*``: any) until a moment."""

    rule: str
    resource: str
    until_wall: float

    def covers(self, rule: str, resource: str, wall: float) -> bool:
        """Tell whether it holds for an incident now."""
        return self.rule in ("*", rule) and self.resource in ("*", resource) and wall < self.until_wall


@dataclass(frozen=True, slots=True)
class Control:
    """All that was asked for."""

    silences: tuple[Silence, ...] = ()
    acknowledged: tuple[int, ...] = ()

    def silenced_until(self, rule: str, resource: str, wall: float) -> float | None:
        """Return the moment until which an incident is silenced; None where it is not."""
        return max((s.until_wall for s in self.silences if s.covers(rule, resource, wall)), default=None)


def _read(path: Path) -> Control:
    try:
        document = documents.parsed(documents.read(path))
        return Control(
            tuple(
                Silence(str(s["rule"]), str(s["resource"]), float(s["until_wall"]))
                for s in document["silences"]
            ),
            tuple(int(number) for number in document["acknowledged"]),
        )
    except FileNotFoundError:
        return Control()


class ControlFile:
    """Reads the file again when it has changed; one that cannot be read silences nothing."""

    def __init__(self, folder: Path, complain: Callable[[Said], None] = lambda _: None) -> None:
        """Keep where it lies."""
        self.path = folder / FILE
        self._complain = complain
        self._stamp: tuple[int, int] | None = None
        self._known = Control()

    def now(self) -> Control:
        """Return what holds."""
        try:
            found = self.path.lstat()
            stamp = (found.st_mtime_ns, found.st_ino)
        except OSError:
            stamp = (0, 0)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._known = _read(self.path)
            except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
                self._known = Control()
                self._complain(
                    say(
                        "{path} cannot be read, so nothing is silenced: {error}",
                        path=str(self.path),
                        error=cause(error),
                    )
                )
        return self._known

    def change(self, how: Callable[[Control], Control]) -> Control:
        """Replace what holds, in one step, so that the daemon never reads half a file.

        Raises:
            OSError: it cannot be written.
        """
        after = how(self.now())
        document = {
            "silences": [asdict(s) for s in after.silences[-_MOST:]],
            "acknowledged": list(after.acknowledged[-_MOST:]),
        }
        documents.put(self.path, json.dumps(document), mode=0o644)  # the daemon is another user
        return after
