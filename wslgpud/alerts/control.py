"""Silences and acknowledgements, given to the running daemon in a small file beside its data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from wslgpud.security import safe_files
from wslgpud.words import MessageLike, cause, say

FILE = "alerts.json"
_MOST = 200


@dataclass(frozen=True, slots=True)
class Silence:
    """No messages of a rule (``*``: any) for a resource (``*``: any) until a moment."""

    rule: str
    resource: str
    until_wall: float


@dataclass(frozen=True, slots=True)
class Control:
    silences: tuple[Silence, ...] = ()
    acknowledged: tuple[int, ...] = ()
    #: up to this row, somebody has seen which jobs were lost
    seen_id: int = -1

    def silenced_until(self, rule: str, resource: str, wall: float) -> float | None:
        covering = (s for s in self.silences if s.rule in ("*", rule) and s.resource in ("*", resource))
        return max((s.until_wall for s in covering if wall < s.until_wall), default=None)


class ControlFile:
    """Rereads the file when it has changed, from any thread; an unreadable one silences nothing."""

    def __init__(self, folder: Path, complain: Callable[[MessageLike], None] = lambda _: None) -> None:
        self.path = folder / FILE
        self._complain = complain
        self._stamp: tuple[int, int] | None = None
        self._known = Control()

    def now(self) -> Control:
        stamp = safe_files.stamp(self.path)
        if stamp != self._stamp:
            known = Control()
            try:
                known = self._read()
            except FileNotFoundError:
                pass
            except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
                why = {"path": str(self.path), "error": cause(error)}
                self._complain(say("{path} cannot be read, so nothing is silenced: {error}", **why))
            # In this order: another thread must not see a partially read state.
            self._known, self._stamp = known, stamp
        return self._known

    def put(self, control: Control) -> None:
        """Replace the file atomically: the daemon never reads half of it. OSError: it cannot be written."""
        latest = Control(control.silences[-_MOST:], control.acknowledged[-_MOST:], control.seen_id)
        safe_files.put(self.path, json.dumps(asdict(latest)), mode=0o644)  # the daemon is another user

    def _read(self) -> Control:
        document = safe_files.parsed(safe_files.contents(self.path))
        silences = ((str(s["rule"]), str(s["resource"]), float(s["until_wall"])) for s in document["silences"])
        acknowledged = tuple(int(number) for number in document["acknowledged"])
        return Control(tuple(Silence(*s) for s in silences), acknowledged, int(document.get("seen_id", -1)))
