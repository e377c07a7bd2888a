"""How far a run is and how long it will still take, from the worker's own lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: of the bytes to go through: before that, nobody can tell how long the rest will take
_SURE_SHARE = 0.05


@dataclass(slots=True)
class WorkerPace:
    """Bytes go by at the pace so far; a pause and a soak last as long as they were told to.

    On a fast card waiting is most of a run: by bytes alone, an H200 was done for the last 30 of its 65 s.
    """

    pause_seconds: float
    soak_seconds: float
    began: float
    planned: int = 0
    done_ratio: float | None = None
    left_seconds: float | None = None
    _traversed: int = 0
    _last: float = 0.0
    _waited: float = 0.0
    _moving_since: float | None = None
    _soaking_since: float | None = None

    def note(self, said: Mapping[str, Any], now: float) -> None:
        """Take a line of the worker; a worker of another version may say less."""
        if said["event"] == "filled":
            self.planned, self._moving_since = said.get("planned", 0), now
        elif said["event"] == "beat" and self.planned and self._moving_since is not None:
            self._beat(said.get("traversed", 0), said.get("phase", ""), now, now - self._moving_since)
        self._last = now

    def _beat(self, traversed: int, phase: str, now: float, moving: float) -> None:
        if phase == "soak" and self._soaking_since is None:
            self._soaking_since = now
        elif phase != "soak" and traversed and traversed == self._traversed:
            self._waited = min(self.pause_seconds, self._waited + now - self._last)
        self._traversed = traversed
        if traversed < _SURE_SHARE * self.planned:
            return
        bytes_left = max(0, self.planned - traversed)
        left = bytes_left * (moving - self._waited) / traversed + self.soak_seconds
        if self._soaking_since is not None:
            left = max(0.0, self._soaking_since + self.soak_seconds - now)
        elif bytes_left:
            left += self.pause_seconds - self._waited
        self.left_seconds = left
        share = (now - self.began) / max(now - self.began + left, 1e-9)
        self.done_ratio = max(self.done_ratio or 0.0, share)  # a bar that goes back looks broken
