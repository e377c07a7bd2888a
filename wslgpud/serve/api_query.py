"""What may be asked of the API: parameters of a query, checked, with an answer that helps. Pure."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from urllib.parse import parse_qsl

from wslgpud.serve.http import Problem, Request
from wslgpud.store.records import shell_pattern
from wslgpud.words import LANGUAGES

#: more parameters than any question needs
_MOST_PARAMETERS = 100
#: more characters than any name of a metric with a label or two has
PATTERN_MAX = 256
#: seconds since the epoch up to the year 5138: what is larger are milliseconds by mistake
_LAST_WALL = 1e11


def language_of(request: Request) -> str:
    """Return the language that a request asks for with ``lang``; English unless it names one.

    Raises Problem: that language is not available.
    """
    return Query(request.query, ("lang",)).language()


class Query:
    """The parameters of one request."""

    def __init__(self, text: str, known: Sequence[str]) -> None:
        """Take a query apart. Raises Problem: it cannot be understood, or holds a parameter that is not ``known``."""
        try:
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS, errors="strict")
        except ValueError as error:
            raise Problem(400, f"the query cannot be read: {error}") from error
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"known are: {', '.join(known) or 'none'}"
                raise Problem(400, f"unknown parameter {name[:40]!r}; {hint}")
            self._values.setdefault(name, []).append(value)

    def all(self, name: str) -> list[str]:
        """Return each value of a parameter that may be repeated."""
        return self._values.get(name, [])

    def text(self, name: str) -> str | None:
        """Return a parameter that may be given once; None when it is absent. Raises Problem: it was given twice."""
        values = self._values.get(name, [])
        if len(values) > 1:
            raise Problem(400, f"{name} may be given only once")
        return values[0] if values else None

    def pattern(self, name: str) -> Callable[[str], bool]:
        """Return a test of series' names against a shell pattern, for the whole name or the metric's alone.

        Without the parameter every name passes.

        Raises Problem: it is longer than ``PATTERN_MAX``, or was given twice.
        """
        given = self.text(name)
        if given is None:
            return lambda _: True
        if len(given) > PATTERN_MAX:
            raise Problem(400, f"{name} may have at most {PATTERN_MAX} characters")
        matches = shell_pattern(given)
        return lambda series: bool(matches(series) or matches(series.partition("{")[0]))

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """Return a parameter that has one of a few values."""
        given = self.text(name)
        if given is not None and given not in choices:
            raise Problem(400, f"{name} must be one of: {', '.join(choices)}")
        return default if given is None else given

    def language(self) -> str:
        """Return the code of the language that is asked for with ``lang``; English by default."""
        return self.choice("lang", LANGUAGES, "en")

    def whole(self, name: str, low: int, high: int) -> int | None:
        """Return a whole number within bounds (both included); None when it is absent."""
        given = self.text(name)
        if given is None:
            return None
        # int() alone would take "1_000", " 7" and digits of other scripts
        number = int(given) if given.isascii() and given.isdigit() and len(given) < 20 else -1
        if not low <= number <= high:
            raise Problem(400, f"{name} must be a whole number from {low} to {high}")
        return number

    def moment(self, name: str) -> float | None:
        """Return a moment in seconds since the epoch, given so or as RFC 3339 writes it."""
        given = self.text(name)
        if given is None:
            return None
        wall = _moment(given)
        if wall is None or not 0 <= wall <= _LAST_WALL:
            raise Problem(400, f"{name} must be seconds since 1970, or a time such as 2026-11-21T03:30:00Z")
        return wall


def _moment(given: str) -> float | None:
    try:
        wall = float(given)
    except ValueError:
        pass
    else:
        return wall if math.isfinite(wall) else None
    # A "+" that was not escaped has become a space; Python before 3.11 does not know Z.
    written = given.strip().replace(" ", "+").replace("Z", "+00:00")
    try:
        parsed = datetime.fromisoformat(written)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None
