"""Messages of a forecast, made of its facts alone, rendered where they are shown or sent.

Wording follows the level: below a warning nothing "is full in 43 s", it would be if growth continued.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wslgpud.model import NOTHING_SAID, Forecast, Level
from wslgpud.risk.attribution import briefer
from wslgpud.risk.levels import BLIND, ENDINGS, EVEN, SURE, shown_level
from wslgpud.words import HEADLINE_CHARACTERS, TEMPLATES, Fact, Message, MessageLike, filled, say, sentences

#: shares of a capacity left: an alarm is over, nearly full, full
PLENTY, NEARLY_FULL, FULL = 0.25, 0.12, 0.005
#: share of a capacity per minute below which use is steady
STEADY = 0.002
#: growth that paused for less than this counts as slowed
STILL_SECONDS = 10.0
#: time left below which rates are per second
URGENT_SECONDS = 120.0
#: causes whose time left is measured; for others it is only as good as their probability
_COUNTDOWN = frozenset({"", "growth", "steps"})

#: advice, by cause, by culprit, or by place
ADVICE: Final[Mapping[str, str]] = TEMPLATES["advice"]
_FIRST_LINES, _CAUSES = TEMPLATES["forecast"], TEMPLATES["cause"]
_RATES: Final = ("urgent_bytes_per_second", "rate_bytes_per_second")
#: facts dropped from a first line that is too long, the least important first; the culprit is kept longest
_SPARED: Final = (
    (),
    ("range",),
    ("range", "room_bytes"),
    ("range", *_RATES),
    ("range", *_RATES, "room_bytes"),
    ("range", *_RATES, "room_bytes", "left_bytes"),
)


def headline(forecast: Forecast) -> Message:
    """Return the first line: the state of the resource at its level.

    ``RAM full in about 4 min (2-7): python train.py (pid 4121) +310 MiB/min, 3.1 of 24 GiB left``.
    """
    return fitted(_FIRST_LINES[_first_line(forecast)], _facts(forecast))


def fitted(text: str, facts: Mapping[str, Fact | None]) -> Message:
    """Return a first line from a template, short enough; empty where it needs an unknown fact.

    Figures that rows and evidence repeat are dropped first; only then is the culprit's name shortened.
    """
    message, who = NOTHING_SAID, facts.get("who", "")
    for brief in (*briefer(who), "") if isinstance(who, (str, Message)) else ():
        for spared in _SPARED:
            told = {name: fact for name, fact in facts.items() if name not in spared} | {"who": brief}
            found = filled(text, {**told, "rest": filled(_FIRST_LINES["rest"], told)})
            message = found or message
            if found and len(str(found)) <= HEADLINE_CHARACTERS:
                return found
    return message


def outlook(forecast: Forecast) -> Message:
    """Return the outlook for a row of a table: ``~43 s left``, ``growing +1.1 GiB/min``, ``steady``.

    Growth that nothing follows from is not told: beside "memory is fine" its rate would only alarm.
    """
    eta, rate, cause = forecast.eta_seconds, _rate(forecast), forecast.cause
    calm = rate is None or abs(rate) * 60.0 < STEADY * forecast.capacity_bytes
    if cause == BLIND or is_full(forecast) or cause == "full":
        age = say("no reading for {age_seconds}", age_seconds=round(forecast.age_seconds))
        return age if cause == BLIND else say("full")
    if cause in ENDINGS and (rate is None or calm or rate < 0):
        return Message(TEMPLATES["ended"][cause], {"ago_seconds": round(forecast.window_seconds or 0.0, 1)})
    if cause in _COUNTDOWN and eta is not None and forecast.level >= Level.WARNING:
        another = say("no room for another {step_bytes}", step_bytes=forecast.next_step_bytes or 0)
        return another if _blocks(forecast) else say("~{eta_seconds} left", eta_seconds=round(eta, 1))
    # While it pauses, the mean of the last minute still grows.
    steady = rate is not None and (calm or _first_line(forecast) == "paused")
    return say("steady") if steady else _growing(forecast, rate)


def _growing(forecast: Forecast, rate: float | None) -> Message:
    if rate is None or rate < 0 or forecast.level == Level.OK:
        return NOTHING_SAID
    if forecast.eta_seconds is not None and forecast.eta_seconds < URGENT_SECONDS:
        return say("growing {urgent_bytes_per_second}", urgent_bytes_per_second=round(rate))
    return say("growing {rate_bytes_per_second}", rate_bytes_per_second=round(rate))


def evidence(forecast: Forecast) -> tuple[Message, ...]:
    """Return the sentences about cause, culprit and probability."""
    likely = {horizon: p for horizon, p in forecast.probabilities.items() if p >= 0.05}
    if not likely or forecast.level == Level.OK:
        return _why(forecast)
    horizon = min(likely, key=lambda h: (likely[h] < SURE, likely[h] < EVEN, h))
    chance = likely[horizon]
    odds: dict[str, Fact] = {"within_seconds": horizon}
    if chance >= SURE:
        odds["chance_ratio"] = round(chance, 3)
        return *_why(forecast), say("Probability that it runs out within {within_seconds}: {chance_ratio}.", **odds)
    even = say("It is about as likely as not to run out within {within_seconds}.", **odds)
    return *_why(forecast), even if chance >= EVEN else say("Most of what looks like this stops by itself.")


def advice(forecast: Forecast, facts: Mapping[str, Fact] | None = None) -> Message:
    """Return the advice, empty once all is well; ``facts`` may include how many ``jobs`` fit."""
    if shown_level(forecast) == Level.OK:
        return NOTHING_SAID
    place = "gpu" if forecast.resource.startswith("gpu") else forecast.resource.partition(":")[0]
    keys = ("spilled" if forecast.spilled_bytes else "", forecast.cause, forecast.who_kind, place, "ram")
    return filled(ADVICE["jobs"], facts or {}) or Message(next(ADVICE[key] for key in keys if key in ADVICE))


def reason(forecast: Forecast) -> MessageLike:
    """Return evidence and advice in one message; empty where nothing is wrong."""
    return sentences([*_why(forecast), advice(forecast)])


def is_swapping(forecast: Forecast) -> bool:
    """Return whether RAM itself is used up and only swap is left."""
    ram = forecast.headroom_bytes - (forecast.swap_free_bytes or 0)
    return forecast.swap_free_bytes is not None and not is_full(forecast) and ram <= FULL * forecast.capacity_bytes


def is_full(forecast: Forecast) -> bool:
    """Return whether next to nothing is left."""
    return _share(forecast) <= FULL


def _first_line(forecast: Forecast) -> str:
    share, cause = _share(forecast), forecast.cause
    counted = cause in _COUNTDOWN
    lines = (
        (cause, cause in {"gone", BLIND} or cause in ENDINGS),
        ("fine", forecast.level == Level.OK and share >= PLENTY),
        ("over", forecast.level == Level.OK),
        ("slower", cause == "paused" and (forecast.window_seconds or 0.0) < STILL_SECONDS),
        ("paused", cause == "paused"),
        ("full", share <= FULL or cause == "full"),
        (cause, not counted and cause in _FIRST_LINES),
        ("growing", counted and forecast.level < Level.WARNING),
        ("block", _blocks(forecast)),
        ("growth", counted and forecast.eta_seconds is not None),
        ("nearly full", share < NEARLY_FULL),
    )
    return next((line for line, holds in lines if holds), "low")


def _blocks(forecast: Forecast) -> bool:
    """Return whether a card fills in blocks of one size, and another one does not fit; when it comes is a guess."""
    too_large = (forecast.next_step_bytes or 0) >= forecast.headroom_bytes
    return forecast.cause == "steps" and forecast.resource.startswith("gpu") and forecast.steps_alike and too_large


def _share(forecast: Forecast) -> float:
    return forecast.headroom_bytes / forecast.capacity_bytes if forecast.capacity_bytes > 0 else 0.0


def _rate(forecast: Forecast) -> float | None:
    """Return the rate of growth: that of the time left, or of a staircase the culprit's."""
    if forecast.level > Level.OK and forecast.who_bytes_per_second and forecast.cause == "steps":
        return forecast.who_bytes_per_second
    return forecast.rate_bytes_per_second


def _facts(forecast: Forecast) -> dict[str, Fact | None]:
    rate, eta, window, cause = _rate(forecast), forecast.eta_seconds, forecast.window_seconds, forecast.cause
    step, share = forecast.next_step_bytes, isinstance(forecast.who, str) and forecast.who_share_ratio
    span = "ago" if cause in ENDINGS else "still" if cause == "paused" else "window"
    expected = cause == "expected"  # what grows now may be something else
    per = "urgent" if eta is not None and eta < URGENT_SECONDS else "rate"
    return {
        "resource": forecast.resource,
        "left_bytes": forecast.headroom_bytes,
        "room_bytes": (forecast.headroom_bytes, forecast.capacity_bytes),
        "age_seconds": max(int(forecast.cause == BLIND), round(forecast.age_seconds)) or None,
        "who": forecast.who,
        f"{span}_seconds": None if window is None else round(window, 1),
        "spilled_bytes": forecast.spilled_bytes or None,
        "in_windows": forecast.in_windows or None,
        "eta_seconds": None if eta is None else round(eta, 1),
        "range": None if eta is None else _range(forecast, eta),
        "share_ratio": round(share, 2) if share else None,
        "step_bytes": step if step and step >= forecast.headroom_bytes else None,
        "peak_bytes": (expected and forecast.expected_peak_bytes) or None,
        f"{per}_bytes_per_second": round(rate) if rate is not None and rate > 0 and not expected else None,
    }


def _range(forecast: Forecast, eta: float) -> str:
    early, late = forecast.eta_early_seconds, forecast.eta_late_seconds
    if early is None or late is None:
        return ""
    unit = 3600.0 if eta >= 90 * 60 else 60.0 if eta >= 90 else 1.0
    low, high = max(1, round(early / unit)), max(1, round(late / unit))
    return f"{low}-{high}" if low < high else ""


def _why(forecast: Forecast) -> tuple[Message, ...]:
    if shown_level(forecast) == Level.OK:
        return ()
    facts, cause = _facts(forecast), forecast.cause
    told = filled(_CAUSES.get(_first_line(forecast) if cause == "paused" else cause, ""), facts)
    known = cause in {"expected", "paused", BLIND} or (cause == "growth" and "share_ratio" in told.facts)
    more = ["holder" if cause == "full" else "who"] * (not known) + ["first"] * forecast.may_stop + ["in_windows"]
    return tuple(filter(None, (told, *(filled(_CAUSES[name], facts) for name in more))))
