"""What is said of a forecast: messages made of its facts alone, worded where they are shown or sent.

The word and the badge agree: below a warning nothing "is full in 43 s", it would be if it went on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wslgpud.model import NOTHING_SAID, Forecast, Level
from wslgpud.risk.attribution import briefer
from wslgpud.risk.levels import ENDINGS
from wslgpud.words import HEADLINE_CHARACTERS, Fact, Message, Said, filled, say, sentences, template

#: shares of a capacity: with so much left an alarm is over; with so little it is nearly full, and full
PLENTY, NEARLY_FULL, FULL = 0.25, 0.12, 0.005
#: share of a capacity per minute below which use is steady
STEADY = 0.002
#: what has not grown for less than this still grows, only more slowly
STILL_SECONDS = 10.0

#: first lines by what is true, see ``_kind``; how it goes on is ``rest``
_STARTS: Final[Mapping[str, str]] = {
    "gone": template("{resource} is gone"),
    "fine": template("{resource} is fine again: {room_bytes} free"),
    "over": template("{resource} is no longer running out: {room_bytes} left"),
    "growing": template("{resource} growing[: would be full in about {eta_seconds} if it goes on][: {rest}]"),
    "growth": template("{resource} full in about {eta_seconds}[ ({range})]: {rest}"),
    "full": template("{resource} is full[; {spilled_bytes} lie in Windows' RAM: slow|: {rest}]"),
    "killed": template("[{who}|A process] was killed {ago_seconds} ago; {room_bytes} free again"),
    "refused": template("An allocation on {resource} failed {ago_seconds} ago; {room_bytes} free again"),
    "freed": template(
        "[{who} ended {ago_seconds} ago; {room_bytes} free again|{resource} is fine again: {room_bytes} free]"
    ),
    "nearly full": template("{resource} is nearly full: {rest}"),
    "low": template("{resource} is running low: {rest}"),
    "expected": template("{resource} may not suffice: {rest}"),
    "paused": template("{resource} has not grown for {still_seconds}: {room_bytes} left"),
    "slower": template("{resource} is growing more slowly now: {room_bytes} left"),
    "pressure": template("Programs stall for lack of {resource}: {rest}"),
    "stall": template("The machine stood still for lack of {resource}: {rest}"),
    "limit": template("{resource} keeps running into its limit: {rest}"),
    "oom": template("{resource} ran out: {rest}"),
}
_REST: Final = template(
    "[{who}[ came to {peak_bytes} before| {rate_bytes_per_second}][, {room_bytes} left|, {left_bytes} left]"
    "|[{rate_bytes_per_second}, ][{room_bytes}|{left_bytes}] left]"
)
#: what a first line does without where it is too long, the least missed first; who is kept longest
_SPARED: Final = (
    (), ("range",), ("range", "room_bytes"), ("range", "rate_bytes_per_second"),
    ("range", "rate_bytes_per_second", "room_bytes"),
    ("range", "rate_bytes_per_second", "room_bytes", "left_bytes"),
)  # fmt: skip

#: why, by what points to exhaustion
_CAUSES: Final[Mapping[str, str]] = {
    "growth": template("{resource} use has grown for {window_seconds}[, {share_ratio} of it by {who}]."),
    "steps": template(
        "{resource} use climbs in steps, about every {window_seconds}, and [the next, of {step_bytes}, may "
        "not fit|few more fit]."
    ),
    "pressure": template("Programs are stalled for much of the time because memory is short."),
    "stall": template("The machine stood still under memory pressure."),
    "limit": template("{resource} keeps running into its limit."),
    "oom": template("An allocation on {resource} has just failed, or a process was killed for it."),
    "full": template(
        "{resource} is full[, and {spilled_bytes} lie in Windows' RAM, which is many times slower|: what is "
        "asked for next does not fit]."
    ),
    "expected": template(
        "In an earlier run {who} came to {peak_bytes} of {resource}; {left_bytes} is left for the rest."
    ),
    "paused": template("{resource} use has not grown for {still_seconds}, but it may go on."),
    "slower": template("{resource} use grows more slowly than when it was warned of."),
}
_WHO = template("Growing: {who}.")
_HOLDER = template("Most of it is held by {who}.")
_FIRST = template("{resource} has not grown like this since wslgpud started: it may stop by itself.")

#: how it goes on where that is calm and something has just ended
_ENDED: Final[Mapping[str, str]] = {
    "killed": template("killed {ago_seconds} ago"),
    "refused": template("allocation failed {ago_seconds} ago"),
    "freed": template("ended {ago_seconds} ago"),
}

#: what to do, by cause, by who is to blame, or by where
ADVICE: Final[Mapping[str, str]] = {
    "ram": template(
        "Save a checkpoint or your work, then stop or restart what grows. Loading a model or a data set "
        "grows as well, and stops by itself."
    ),
    "paused": template("Nothing needs to be done unless it grows again; otherwise the alarm ends by itself."),
    "expected": template(
        "Free memory first, or start it smaller: fewer jobs or workers, a smaller batch; or stop it."
    ),
    "pressure": template(
        "Pause or stop the largest program (kill -STOP keeps its work), then run fewer jobs at once. More "
        "swap does not help; more RAM does (memory= in .wslconfig)."
    ),
    "group": template(
        "Run fewer of them at once: MAX_JOBS or -j for builds, num_workers for data loaders; each needs its "
        "own memory."
    ),
    "jobs": template(
        "Run fewer of them at once: about {jobs} fit here (MAX_JOBS={jobs} or -j{jobs} for builds, "
        "num_workers={jobs} for data loaders)."
    ),
    "tmpfs": template("Remove files in /dev/shm or tmpfs, or let fewer data loader workers share memory."),
    "kernel": template(
        "Close what is not needed; no single process is to blame. 'slabtop' shows which kernel cache grows, "
        "often that of a driver or of files under /mnt/c."
    ),
    "huge pages": template("Huge pages are reserved and usable by nothing else: lower vm.nr_hugepages."),
    "unknown": template("Close what is not needed; no single process is to blame."),
    "spilled": template(
        "Nothing fails, it only crawls, and Windows does not move it back while the card is full. Use a "
        "smaller batch, a shorter context or gradient checkpointing, or close desktop programs on this "
        "card. Windows' 'Prefer No Sysmem Fallback' is not honoured by WSL2; "
        "torch.cuda.set_per_process_memory_fraction is."
    ),
    "gpu": template(
        "Save a checkpoint, then use a smaller batch, a shorter context, or stop another process on this "
        "card; under WSL2 desktop programs hold VRAM, too. JAX and TensorFlow take most of it at their start "
        "by design. PyTorch: expandable_segments is not reliable under WSL2."
    ),
    "cgroup": template("Raise the group's limit or stop what grows in it."),
}


def headline(forecast: Forecast) -> Message:
    """Return the first line: what is true of the resource at the level that it has.

    ``RAM full in about 4 min (2-7): python train.py (pid 4121) +310 MiB/min, 3.1 of 24 GiB left``.
    """
    return fitted(_STARTS[_kind(forecast)], _facts(forecast))


def fitted(text: str, facts: Mapping[str, Fact]) -> Message:
    """Return a first line of that template that is short enough, an empty one where it needs what is unknown.

    Figures that rows and evidence tell as well go first; who it is about is told more briefly only then.
    """
    message, who = NOTHING_SAID, facts.get("who", "")
    for brief in (*briefer(who), "") if isinstance(who, (str, Message)) else ():
        for spared in _SPARED:
            told = {name: fact for name, fact in facts.items() if name not in spared} | {"who": brief}
            found = filled(text, {**told, "rest": filled(_REST, told)})
            message = found or message
            if found and len(str(found)) <= HEADLINE_CHARACTERS:
                return found
    return message


def outlook(forecast: Forecast) -> Message:  # noqa: PLR0911 - a line for each
    """Return how it goes on, for a row of a table: ``~43 s left``, ``growing +1.1 GiB/min``, ``steady``."""
    if _share(forecast) <= FULL or forecast.cause == "full":
        return say("full")
    eta, rate = forecast.eta_seconds, _rate(forecast)
    calm = rate is None or abs(rate) * 60.0 < STEADY * forecast.capacity_bytes
    if forecast.cause in _ENDED and (rate is None or calm or rate < 0):
        return Message(_ENDED[forecast.cause], {"ago_seconds": round(forecast.window_seconds or 0.0, 1)})
    if _is_countdown(forecast) and eta is not None and forecast.level >= Level.WARNING:
        return say("~{eta_seconds} left", eta_seconds=round(eta, 1))
    if rate is None:
        return NOTHING_SAID
    if calm or _kind(forecast) == "paused":  # the mean of the last minute still grows
        return say("steady")
    if rate < 0:
        return say("shrinking {rate_bytes_per_second}", rate_bytes_per_second=round(rate))
    return say("growing {rate_bytes_per_second}", rate_bytes_per_second=round(rate))


def evidence(forecast: Forecast) -> tuple[Message, ...]:
    """Return the sentences that say why, who, and how likely it is."""
    likely = {horizon: p for horizon, p in forecast.probabilities.items() if p >= 0.05}
    if not likely or forecast.level == Level.OK:
        return _why(forecast)
    horizon = min(likely, key=lambda h: (likely[h] < 0.5, h))
    return *_why(forecast), say(
        "Probability that it runs out within {within_seconds}: {chance_ratio}.",
        within_seconds=horizon,
        chance_ratio=round(likely[horizon], 3),
    )


def advice(forecast: Forecast, facts: Mapping[str, Fact] | None = None) -> Message:
    """Return what to do, nothing once all is well; ``facts`` may tell how many ``jobs`` fit."""
    if forecast.level == Level.OK:
        return NOTHING_SAID
    place = "gpu" if forecast.resource.startswith("gpu") else forecast.resource.partition(":")[0]
    keys = ("spilled" if forecast.spilled_bytes else "", forecast.cause, forecast.who_kind, place, "ram")
    known = next(ADVICE[key] for key in keys if key in ADVICE)
    return filled(ADVICE["jobs"], facts or {}) or Message(known)


def reason(forecast: Forecast) -> Said:
    """Return why and what to do in one message; an empty one where nothing is wrong."""
    return sentences([*_why(forecast), advice(forecast)])


def _kind(forecast: Forecast) -> str:  # noqa: PLR0911 - a line for each
    """Return which of the first lines is true."""
    share, cause = _share(forecast), forecast.cause
    if cause == "gone" or cause in ENDINGS:
        return cause
    if forecast.level == Level.OK:
        return "fine" if share >= PLENTY else "over"
    if cause == "paused":
        return cause if (forecast.window_seconds or 0.0) >= STILL_SECONDS else "slower"
    if share <= FULL or cause == "full":
        return "full"
    if _is_countdown(forecast):
        if forecast.level < Level.WARNING:
            return "growing"
        if forecast.eta_seconds is not None:
            return "growth"
    elif cause in _STARTS:
        return cause
    return "nearly full" if share < NEARLY_FULL else "low"


def _is_countdown(forecast: Forecast) -> bool:
    """Tell whether the time left is measured; of other causes it is only as good as their likelihood."""
    return forecast.cause in {"", "growth", "steps"}


def is_full(forecast: Forecast) -> bool:
    """Tell whether next to nothing is left."""
    return _share(forecast) <= FULL


def _share(forecast: Forecast) -> float:
    return forecast.headroom_bytes / forecast.capacity_bytes if forecast.capacity_bytes > 0 else 0.0


def _rate(forecast: Forecast) -> float | None:
    """Return how fast it grows: as fast as who is told of, where that is who grows now."""
    if forecast.level > Level.OK and forecast.who_bytes_per_second and forecast.cause in {"growth", "steps"}:
        return forecast.who_bytes_per_second
    return forecast.rate_bytes_per_second


def _facts(forecast: Forecast) -> dict[str, Fact]:
    """Return what is known of a forecast; what is not is left out, or empty."""
    rate, eta, window, cause = _rate(forecast), forecast.eta_seconds, forecast.window_seconds, forecast.cause
    facts: dict[str, Fact] = {
        "resource": forecast.resource,
        "left_bytes": forecast.headroom_bytes,
        "room_bytes": (forecast.headroom_bytes, forecast.capacity_bytes),
        "who": forecast.who,
    }
    if window is not None:
        name = "ago" if cause in ENDINGS else "still" if cause == "paused" else "window"
        facts[f"{name}_seconds"] = round(window, 1)
    if forecast.spilled_bytes:
        facts["spilled_bytes"] = forecast.spilled_bytes
    if eta is not None:
        facts |= {"eta_seconds": round(eta, 1), "range": _range(forecast, eta)}
    if isinstance(forecast.who, str) and forecast.who_share_ratio:
        facts["share_ratio"] = round(forecast.who_share_ratio, 2)
    if (step := forecast.next_step_bytes) and step >= forecast.headroom_bytes:
        facts["step_bytes"] = step
    if cause == "expected":  # what grows now may be something else
        facts |= {"peak_bytes": forecast.expected_peak_bytes} if forecast.expected_peak_bytes else {}
    elif rate is not None and rate > 0:
        facts["rate_bytes_per_second"] = round(rate)
    return facts


def _range(forecast: Forecast, eta: float) -> str:
    early, late = forecast.eta_early_seconds, forecast.eta_late_seconds
    if early is None or late is None:
        return ""
    unit = 3600.0 if eta >= 90 * 60 else 60.0 if eta >= 90 else 1.0
    low, high = max(1, round(early / unit)), max(1, round(late / unit))
    return f"{low}-{high}" if low < high else ""


def _why(forecast: Forecast) -> tuple[Message, ...]:
    """Return what points to exhaustion, and who grows."""
    if forecast.level == Level.OK:
        return ()
    facts, cause = _facts(forecast), forecast.cause
    told = filled(_CAUSES.get(_kind(forecast) if cause == "paused" else cause, ""), facts)
    who = _HOLDER if cause == "full" else _WHO
    known = cause in {"expected", "paused"} or (cause == "growth" and "share_ratio" in told.facts)
    found = (told, *[filled(who, facts)] * (not known), *[filled(_FIRST, facts)] * forecast.may_stop)
    return tuple(filter(None, found))
