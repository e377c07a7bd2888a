"""What a warning says: one line of at most 90 characters, and one sentence that can be acted on."""

from __future__ import annotations

from wslgpud.model import Forecast
from wslgpud.risk.attribution import Culprit
from wslgpud.risk.levels import ENDINGS, Danger
from wslgpud.units import duration, resource_name, size, speed

HEADLINE_CHARACTERS = 90
_CAUSES = {
    "pressure": "all programs stand still for much of the time because memory is short",
    "stall": "the machine stood still under memory pressure",
    "limit": "{name} keeps running into its limit",
    "oom": "an allocation on {name} has just failed or a process was killed for it",
}
_STATES = {
    "full": "is full",
    "killed": "was freed by a kill {ago} ago",
    "refused": "refused memory {ago} ago",
    "freed": "was given back {ago} ago",
}


def _when(forecast: Forecast, *, with_range: bool) -> str:
    eta = forecast.eta_seconds
    if forecast.cause == "expected":
        return "may not suffice"
    if forecast.cause in _STATES:
        return _STATES[forecast.cause].format(ago=duration(forecast.window_seconds or 0.0))
    if forecast.cause == "paused":
        return f"has not grown for {duration(forecast.window_seconds or 0.0)}"
    if eta is None:
        return "is nearly full"
    text = f"full in ~{duration(eta)}"
    early, late = forecast.eta_early_seconds, forecast.eta_late_seconds
    if early is None or late is None or not with_range:
        return text
    unit = 60.0 if eta >= 90 else 1.0
    unit = 3600.0 if eta >= 90 * 60 else unit
    low, high = max(1, round(early / unit)), max(1, round(late / unit))
    return f"{text} ({low}-{high})" if low < high else text


def headline(forecast: Forecast, rate: float | None = None) -> str:
    """Return the first line of a warning.

    ``RAM full in ~4 min (2-7): python train.py (pid 4121) +310 MB/min, 3.1 GB left of 24``
    """
    left, capacity = size(forecast.headroom_bytes), size(forecast.capacity_bytes)
    if left.split()[-1] == capacity.split()[-1]:
        capacity = capacity.split()[0]
    shown = forecast.rate_bytes_per_second if rate is None else rate
    told = f"{speed(shown)}, " if shown and shown > 0 else ""
    if forecast.cause == "expected":  # what grows now may be something else
        peak = forecast.expected_peak_bytes
        told = f"came to {size(peak)} before, " if peak else ""
    who = f"{forecast.who} " if forecast.who else ""
    if forecast.cause == "paused":
        told = who = ""
    if forecast.cause in ENDINGS:
        told = ""
    end = f"{told}{left} left of {capacity}"
    if forecast.cause == "full":
        told = f"{size(forecast.spilled_bytes)} lie in Windows' RAM, " if forecast.spilled_bytes else ""
        end = f"{told}{left} left"
    for with_range in (True, False):
        start = f"{resource_name(forecast.resource)} {_when(forecast, with_range=with_range)}: "
        room = HEADLINE_CHARACTERS - len(start) - len(end)
        for shown_who in (who, who.partition(" (pid")[0] + " "):
            if len(shown_who) <= room:
                return start + shown_who + end
    return f"{start}{who[: room - 2]}… {end}" if room > 8 else start + end


def _advice(resource: str, culprit: Culprit) -> str:
    if culprit.kind == "tmpfs":
        return "remove files there, or let fewer data loader workers share memory"
    if resource.startswith("cgroup:"):
        return "raise the group's limit or stop what grows in it"
    if resource.startswith("gpu"):
        return "save a checkpoint, then use a smaller batch or stop a process on this card"
    if culprit.kind == "group":
        return "run fewer of them at once (MAX_JOBS, -j, num_workers)"
    if culprit.kind in {"kernel", "huge pages", "unknown"}:
        return "close what is not needed; no single process is to blame"
    return "save its work, then stop or restart it"


def reason(
    resource: str, danger: Danger, culprit: Culprit, peak_bytes: int | None = None, left_bytes: int = 0
) -> str:
    """Return why, and what to do, in one sentence; ``peak_bytes`` is what an expected command came to."""
    name = resource_name(resource)
    if danger.cause == "paused":
        return (
            f"nothing has pointed to {name} running out for {duration(danger.window_seconds)}: "
            "if that stays so, this ends by itself."
        )
    who = culprit.text or "something"
    if danger.cause == "full":
        spilled = f"{size(danger.spilled_bytes)} lie in Windows' RAM, which is slow"
        then = spilled if danger.spilled_bytes else "what comes next will not fit"
        return f"{name} is full, and {then}; held by {who}: {_advice(resource, culprit)}."
    if danger.cause == "steps":
        what = f"use of {name} climbs in steps every {duration(danger.window_seconds)} or so"
        what += " and the next may not fit" if danger.next_step >= danger.headroom else " and few more fit"
    elif danger.cause in _CAUSES:
        what = _CAUSES[danger.cause].format(name=name)
    elif danger.cause == "expected":
        what = f"{who} came to {size(peak_bytes or 0)} before, and only {size(left_bytes)} of {name} are left"
    else:
        likely = "probably " if who.startswith("probably ") else ""
        share = f"{100 * culprit.share:.0f} % of it by {who.removeprefix(likely)}"
        share = f", {likely}{share}" if culprit.share else ""
        what = f"use of {name} has grown for {duration(danger.window_seconds)}{share}"
        if danger.window_seconds < 30:
            what += " (it may stop by itself)"
    if danger.cause not in {"growth", "expected"} and culprit.text:
        what += f"; growing: {who}"
    advice = "make room first, or stop it" if danger.cause == "expected" else _advice(resource, culprit)
    return f"{what}: {advice}."
