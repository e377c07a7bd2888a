"""Moments and lengths of time as people write them, in commands."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, timezone
from time import tzset
from typing import Final

from wslgpud.words import MessageError


class MomentError(MessageError):
    """A text is no moment or length of time; the message shows how these are written."""


_UNITS: Final = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LENGTH = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})? ?(?:min|[smhdw]) ?){1,5}")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_DAYS: Final = {"today": 0, "yesterday": 1}


def moment(text: str, now: float) -> float:
    """Return a moment in seconds since the epoch, never before it, or raise MomentError.

    ``90s``, ``2h``, ``7d`` count back from ``now``; ``14:00`` is the most recent one; ``today`` and ``yesterday`` mean
    the beginning of that day unless a time of day follows; else it is a date with or without a time, in local time
    unless it has a zone.
    """
    typed = text.strip().lower()
    ago = 0.0 if typed == "now" else _length(typed.removesuffix(" ago"))
    if ago is not None:
        return max(0.0, now - ago)
    try:
        return max(0.0, _date(typed, now).timestamp())
    except (ValueError, OverflowError, OSError) as error:
        raise MomentError(
            "{text} is not a time: write 90s, 2h or 7d (so long ago), 14:00, yesterday, now, 2026-11-20,"
            " '2026-11-20 14:00' or 2026-11-20T14:00:05",
            text=repr(text),
        ) from error


def seconds(text: str, *, zero: bool = False) -> float:
    """Return a length of time in seconds: ``90s``, ``5min``, ``2h``, ``1h30m``, ``7d``; or ``0`` with ``zero``."""
    length = _length(text.strip().lower())
    if zero and (length == 0 or text.strip() == "0"):
        return 0.0
    if not length:
        raise MomentError("{text} is not a duration: write 90s, 5min, 2h, 1h30m or 7d", text=repr(text))
    return length


def span(since: str, until: str, now: float) -> tuple[float, float]:
    """Return the beginning and the end given by ``--since`` and ``--until``."""
    start, end = moment(since, now), moment(until, now)
    if start >= end:
        raise MomentError("--since {since} is not before --until {until}", since=since, until=until)
    return start, end


def _length(text: str) -> float | None:
    if not _LENGTH.fullmatch(text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+) ?([a-z]+)", text))


def _date(text: str, now: float) -> datetime:
    """Read a date, a time of day, or both."""
    today = datetime.fromtimestamp(now).astimezone().replace(tzinfo=None)
    day, _, rest = text.partition(" ")
    if day in _DAYS:
        date = today.date() - timedelta(days=_DAYS[day])
        return datetime.combine(date, _time(rest) if rest else time())
    if _CLOCK.fullmatch(text):
        when = datetime.combine(today.date(), _time(text))
        return when if when <= today else when - timedelta(days=1)
    # Python 3.10 does not know the Z.
    return datetime.fromisoformat(re.sub(r"z$", "+00:00", text).upper())


def _time(text: str) -> time:
    if (match := _CLOCK.fullmatch(text)) is None:
        raise ValueError(text)
    hour, minute, second = (int(part or 0) for part in match.groups())
    return time(hour, minute, second)


def iso(wall: float | None) -> str | None:
    """Return a moment for programs, in UTC; None where unknown."""
    return None if wall is None else datetime.fromtimestamp(wall, timezone.utc).isoformat(timespec="milliseconds")


def local_time(at: str) -> str:
    """Return a moment in this machine's local time; empty where unknown."""
    tzset()  # the zone may have changed since our start
    return f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}" if at else ""
