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


def quiet_hours(text: str) -> tuple[float, float] | None:
    """Read ``22:00-07:00`` as seconds since local midnight; nothing means none, and all else is a ConfigError."""
    if not text:
        return None
    match = _QUIET.fullmatch(text.strip())
    if match is None:
        raise ConfigError("alerts.quiet_hours must be like 22:00-07:00, not {text}", text=repr(text))
    start_hour, start_minute, end_hour, end_minute = map(int, match.groups())
    return start_hour * _HOUR + start_minute * 60, end_hour * _HOUR + end_minute * 60


def second_of_day(wall: float) -> float:
    """Return the seconds since midnight of this machine's time zone, which Windows and people set anew."""
    time.tzset()  # else what held at our start would hold for ever
    local = time.localtime(wall)
    return local.tm_hour * _HOUR + local.tm_min * 60.0 + local.tm_sec


@dataclass(slots=True)
class SendPolicy:
    """What one channel for people may do now; ``quiet`` hours may reach over midnight."""

    quiet: tuple[float, float] | None = None
    quiet_level: Level = Level.EMERGENCY
    per_hour: int = 20
    day: Callable[[float], float] = second_of_day
    _sent: deque[float] = field(default_factory=deque, init=False)

    @classmethod
    def of(cls, settings: Alerts) -> SendPolicy:
        """Return that of the configuration; raises what ``quiet_hours`` does."""
        level = Level[settings.quiet_level.upper()]
        return cls(quiet_hours(settings.quiet_hours), level, settings.messages_per_hour)

    def wait(self, worst: Level, wall: float, mono: float) -> float:
        """Return how long messages up to this level must wait: 0 when they may go now, as an emergency always may."""
        if worst >= Level.EMERGENCY:
            return 0.0
        left = 0.0
        if self.quiet is not None and worst < self.quiet_level:
            start, end = self.quiet
            left = max(0.0, (end - start) % _DAY - (self.day(wall) - start) % _DAY)
        while self._sent and mono - self._sent[0] >= _HOUR:
            self._sent.popleft()
        if len(self._sent) >= self.per_hour:
            left = max(left, self._sent[0] + _HOUR - mono)
        return left

    def sent(self, mono: float) -> None:
        """Note that a message went out."""
        self._sent.append(mono)
