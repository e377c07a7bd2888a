"""When a channel for people may speak: quiet hours, and no more messages an hour than somebody will read."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from wslgpud.config import Alerts
from wslgpud.config.key import ConfigError
from wslgpud.model import Level

_HOUR = 3600.0
_DAY = 24 * _HOUR
_QUIET = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class Quiet:
    """A stretch of each day, in seconds since local midnight; may reach over midnight."""

    start: float
    end: float

    def left(self, second_of_day: float) -> float:
        """Return the seconds until quiet hours end, 0 outside of them."""
        length = (self.end - self.start) % _DAY
        into = (second_of_day - self.start) % _DAY
        return length - into if into < length else 0.0


def quiet_hours(text: str) -> Quiet | None:
    """Read ``22:00-07:00``; nothing means none, and all else is a ConfigError."""
    if not text:
        return None
    match = _QUIET.fullmatch(text.strip())
    if match is None:
        raise ConfigError("alerts.quiet_hours must be like 22:00-07:00, not {text}", text=repr(text))
    hours = [int(part) for part in match.groups()]
    return Quiet(hours[0] * _HOUR + hours[1] * 60, hours[2] * _HOUR + hours[3] * 60)


def channel_levels(settings: Alerts) -> dict[str, Level]:
    """Return the lowest level of each channel that has one of its own; ConfigError where one is not ``name=level``."""
    found = {}
    for entry in settings.channel_levels:
        name, _, level = entry.partition("=")
        if level.upper() not in Level.__members__ or not name:
            raise ConfigError(
                "alerts.channel_levels must hold entries like windows_toast=critical, not {entry}", entry=repr(entry)
            )
        found[name] = Level[level.upper()]
    return found


def second_of_day(wall: float) -> float:
    """Return the seconds since midnight of this machine's time zone, which Windows and people set anew."""
    time.tzset()  # else what held at our start would hold for ever
    local = time.localtime(wall)
    return local.tm_hour * _HOUR + local.tm_min * 60.0 + local.tm_sec


@dataclass(slots=True)
class SendPolicy:
    """What one channel for people may do now."""

    quiet: Quiet | None = None
    quiet_level: Level = Level.EMERGENCY
    per_hour: int = 20
    day: Callable[[float], float] = second_of_day
    _sent: deque[float] = field(default_factory=deque)

    def wait(self, worst: Level, wall: float, mono: float) -> float:
        """Return how long messages up to this level must wait: 0 when they may go now, as an emergency always may."""
        if worst >= Level.EMERGENCY:
            return 0.0
        left = self.quiet.left(self.day(wall)) if self.quiet is not None and worst < self.quiet_level else 0.0
        while self._sent and mono - self._sent[0] >= _HOUR:
            self._sent.popleft()
        if len(self._sent) >= self.per_hour:
            left = max(left, self._sent[0] + _HOUR - mono)
        return left

    def sent(self, mono: float) -> None:
        """Note that a message went out."""
        self._sent.append(mono)
