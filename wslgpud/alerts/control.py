"""What people have silenced, acknowledged and seen."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from wslgpud.security import safe_files
from wslgpud.words import MessageLike, cause, say

FILE = "alerts.json"
_MAX_ENTRIES = 200


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
    """Keeps it across restarts; from any thread. Only the daemon writes: commands ask it to, over its socket."""

    def __init__(self, folder: Path, complain: Callable[[MessageLike], None] = lambda _: None) -> None:
        """Read the file; an unreadable one silences nothing."""
        self.path = folder / FILE
        self._lock = threading.Lock()
        self.now = Control()
        try:
            self.now = self._read()
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            complain(
                say("{path} cannot be read, so nothing is silenced: {error}", path=str(self.path), error=cause(error))
            )

    def silence(self, silence: Silence, wall: float) -> None:
        """Replace the silence of that rule and resource, and drop those that are over. OSError: it cannot be kept."""
        with self._lock:
            place = silence.rule, silence.resource
            others = (s for s in self.now.silences if s.until_wall > wall and (s.rule, s.resource) != place)
            self._put(replace(self.now, silences=(*others, silence)))

    def acknowledge(self, number: int, seen_id: int = -1) -> None:
        """Acknowledge an incident, whose jobs lost up to that row somebody has seen. OSError: it cannot be kept."""
        with self._lock:
            others = (known for known in self.now.acknowledged if known != number)
            seen_id = max(seen_id, self.now.seen_id)
            self._put(replace(self.now, acknowledged=(*others, number), seen_id=seen_id))

    def see(self, row_id: int) -> None:
        with self._lock:
            self._put(replace(self.now, seen_id=max(row_id, self.now.seen_id)))

    def _put(self, control: Control) -> None:
        latest = Control(control.silences[-_MAX_ENTRIES:], control.acknowledged[-_MAX_ENTRIES:], control.seen_id)
        safe_files.put(self.path, json.dumps(asdict(latest)), mode=0o644)  # 'wslgpud alerts list' is another user
        self.now = latest

    def _read(self) -> Control:
        document = safe_files.parsed(safe_files.contents(self.path))
        silences = ((str(s["rule"]), str(s["resource"]), float(s["until_wall"])) for s in document["silences"])
        acknowledged = tuple(int(number) for number in document["acknowledged"])
        return Control(tuple(Silence(*s) for s in silences), acknowledged, int(document.get("seen_id", -1)))
