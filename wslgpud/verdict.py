"""The verdict: the most important fact of a tick. Pure.

One level, one subject, one message, one advice. Terminal, page, API, metrics, Grafana and systemd's status
line show it and decide nothing themselves.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from wslgpud.alerts.incidents import Incident, Key, OpenIncident, UnseenLoss, story
from wslgpud.alerts.measures import READ_BY
from wslgpud.alerts.messages import text_now, with_victim
from wslgpud.alerts.rules import BRAKE, DRIVER_GONE, OOM_KILL, UNCLEAN_END
from wslgpud.metrics import MetricSpec
from wslgpud.model import MEMORY, NOTHING_SAID, Forecast, Level, Reading, Snapshot, Transition
from wslgpud.risk import forecast_messages, risk_metrics
from wslgpud.risk.levels import BLIND, ENDINGS, shown_level
from wslgpud.sources.gpu import GpuSource
from wslgpud.sources.memory import MEMINFO, MemorySource
from wslgpud.words import HEADLINE_CHARACTERS, Message, MessageLike, say

#: causes of something that is over: announced once; no alarm stays up over free memory because of them
OVER = frozenset({UNCLEAN_END, "clock_jump"})
#: a calm verdict mentions for this long what has ended
NEWS_SECONDS = 120.0
#: resources that the calm verdict lists; a machine may have hundreds of cgroups
MAX_ROOMS = 3
#: loading NVIDIA's library and waking a sleeping card take seconds
GPU_START_SECONDS = 10.0

LEVEL = MetricSpec(
    "verdict_level",
    "gauge",
    "",
    "Overall level: 0 ok, 1 info, 2 warning, 3 critical, 4 emergency; absent where the state of memory is unknown.",
    stored=False,  # stored as changes of level
)
VERDICT = MetricSpec(
    "verdict",
    "info",
    "",
    "The verdict shown on every screen: its level, subject, cause (a rule, or the evidence), culprit, and the "
    "sentence with the figures of the last change.",
    ("level", "subject", "cause", "who", "headline"),
    stored=False,
)
METRICS = (LEVEL, VERDICT)


class Verdict(NamedTuple):
    """The overall state.

    ``level`` is None where memory's state is unknown; ``subject`` a resource, empty when all is well; ``cause`` a
    keyword that stays while the figures of the message change (a rule, or the evidence of exhaustion); ``who`` the
    culprit; ``incident`` the open incident in question; ``also`` counts other open problems. ``lost`` is a job whose
    loss nobody has seen yet, which changes no level; ``calm`` then says how memory stands where the message is about
    the kill. ``limit_bytes`` is the memory limit of a group.
    """

    level: Level | None
    message: Message
    advice: Message = NOTHING_SAID
    subject: str = ""
    cause: str = ""
    who: MessageLike = ""
    pid: int | None = None
    incident: int | None = None
    also: int = 0
    lost: UnseenLoss | None = None
    calm: Message = NOTHING_SAID
    limit_bytes: int = 0

    @property
    def label(self) -> str:
        """Name of the level as written in JSON and metrics."""
        return "unknown" if self.level is None else self.level.label

    @property
    def state(self) -> str:
        """The level, or "killed": while nothing is wrong now, a job that was lost comes first."""
        calm = self.level is not None and self.level < Level.WARNING
        return "killed" if self.lost is not None and calm else self.label

    @property
    def command(self) -> str:
        """The command that asks the culprit to stop, else raises the group's limit by a quarter; empty without either.

        A culprit that is only probable is not stopped.
        """
        if self.level is None or self.level < Level.WARNING:
            return ""
        if self.pid is not None and isinstance(self.who, str):
            return f"kill -INT {self.pid}"
        path = self.subject.removeprefix("cgroup:")
        if not self.limit_bytes or path == "/":  # a container's own limit can only be raised from outside
            return ""
        file = shlex.quote(f"/sys/fs/cgroup{path}/memory.max")
        return f"echo {self.limit_bytes * 5 // 4 >> 20}M | sudo tee {file}"


#: WSL1 (https://github.com/microsoft/WSL/issues/296), Linux before 3.14, lxcfs before 2.0 (lxc/lxcfs#56). What is free
#: or cached does not stand in for it: WSL1 reports no cache, and such containers the whole machine's.
NOT_TOLD = say("/proc/meminfo does not say how much is available (no MemAvailable)")
#: before the first sample
WAITING = Verdict(None, say("The daemon has just started: waiting for the first sample"))


def decide(
    forecasts: Sequence[Forecast],
    standing: Iterable[OpenIncident],
    lately: Iterable[Transition] = (),
    *,
    blind: Mapping[str, MessageLike] = MappingProxyType({}),
    lost: UnseenLoss | None = None,
) -> Verdict:
    """Return the verdict on the current forecasts and open incidents; acknowledged ones do not count.

    ``lately`` holds the announcements of the last minutes, newest last; ``blind`` says why the memory of "ram" or "gpu"
    cannot be read, or the "engine" cannot judge any; ``lost`` is a job whose loss nobody has seen yet.
    """
    verdict = _decided(forecasts, standing, lately, blind)
    if lost is not None and verdict.cause in ("killed", "refused"):
        verdict = verdict._replace(calm=_fine(forecasts))
    return verdict._replace(lost=lost)


def _decided(
    forecasts: Sequence[Forecast],
    standing: Iterable[OpenIncident],
    lately: Iterable[Transition],
    blind: Mapping[str, MessageLike],
) -> Verdict:
    known = list(standing)
    numbers = {one.incident.key: one.incident.id for one in known}
    paused = {o.incident.resource: o for o in known if o.incident.paused is not None}
    # A resource that has stopped growing has no forecast to show; one that still grows comes first.
    silent = {f.resource for f in forecasts if f.resource in paused and paused[f.resource].incident.stands_still(f)}
    # The incident about the driver's silence covers what it hides.
    if any(o.incident.rule == DRIVER_GONE and not o.acknowledged for o in known):
        silent |= {f.resource for f in forecasts if f.resource.startswith("gpu") and f.cause == BLIND}
    speaking = (f for f in forecasts if f.resource not in silent)
    growing = (f for f in speaking if shown_level(f) > Level.OK)
    candidates = [(_of_forecast(f, shown_level(f), numbers), f.eta_seconds) for f in growing]
    candidates += [(_of_incident(o.incident), None) for o in paused.values() if not o.acknowledged]
    # Memory counts by its forecasts: an incident that is only waiting to be closed is no current problem.
    readable = {_read_by(f.resource) for f in forecasts}
    others = (
        o.incident
        for o in known
        if story(o.incident.rule) != MEMORY
        and not (o.incident.rule == BLIND and o.incident.resource in readable)
        and not o.acknowledged
    )
    candidates += [(_of_incident(incident), None) for incident in others]
    candidates += [(one, None) for one in _never_read(forecasts, blind)]
    if not candidates:
        return _calm(forecasts, list(lately), numbers)
    worst, _ = chosen = max(candidates, key=_urgency)
    return worst._replace(also=sum(one is not chosen and one[0].cause not in OVER for one in candidates))


def unwatched(now: Verdict) -> Verdict:
    """Return the verdict where no daemon runs: however calm it looks, nobody will warn."""
    if now.level is not None and now.level >= Level.WARNING:
        return now
    message = say("Not watched: no daemon runs here. {now}", now=now.message)
    start = say("{command}   # or: wslgpud run", command="sudo systemctl enable --now wslgpud")
    return now._replace(level=None, message=message, advice=start)


def _never_read(forecasts: Sequence[Forecast], blind: Mapping[str, MessageLike]) -> Iterator[Verdict]:
    """Yield the memory of which not even an old figure is known, nor what the figures mean."""
    if "engine" in blind:
        yield Verdict(None, say("The state of memory cannot be judged: {why}", why=blind["engine"]))
    if "ram" in blind and not any(forecast.resource == "ram" for forecast in forecasts):
        yield Verdict(None, say("The machine's memory cannot be read: {why}", why=blind["ram"]))
    if "gpu" in blind and not any(forecast.resource.startswith("gpu") for forecast in forecasts):
        yield Verdict(Level.INFO, say("The GPU cannot be read: {why}", why=blind["gpu"]), subject="gpu")


def blindness(snapshot: Snapshot) -> dict[str, MessageLike]:
    """Return why a tick could not read the memory of "ram" or "gpu", or the "engine" could judge none.

    A GPU that is absent is no fault; one whose first answer takes seconds is late by more than its driver's start.
    """
    health = {report.name: report for report in snapshot.reports if report.health != "ok"}
    reasons: dict[str, MessageLike] = {}
    if engine := health.get(risk_metrics.REPORT):
        reasons["engine"] = engine.error
    if ram := health.get(MemorySource.name):
        reasons["ram"] = ram.error or ram.health
    elif snapshot.value(MEMINFO["MemTotal"]) is not None and snapshot.value(MEMINFO["MemAvailable"]) is None:
        reasons["ram"] = NOT_TOLD
    gpu = health.get(GpuSource.name)
    if gpu and (gpu.health == "failed" or (gpu.health == "late" and gpu.duration_seconds > GPU_START_SECONDS)):
        reasons["gpu"] = gpu.error or gpu.health
    return reasons


def _urgency(candidate: tuple[Verdict, float | None]) -> tuple[float, bool, float]:
    verdict, eta = candidate
    # Being unable to read memory ranks above any note and below any warning.
    level = Level.INFO + 0.5 if verdict.level is None else float(verdict.level)
    return level, eta is not None, -(eta or 0.0)


def _of_forecast(forecast: Forecast, level: Level, numbers: Mapping[Key, int], cause: str = "") -> Verdict:
    """Return the verdict of one forecast; ``numbers`` are those of the open incidents."""
    what, where = (forecast_messages.headline(forecast), forecast_messages.advice(forecast)), forecast.resource
    unread = forecast.cause == BLIND and _read_by(where)
    number = numbers.get((BLIND, unread) if unread else (MEMORY, where))
    verdict = Verdict(level, *what, where, cause or forecast.cause, forecast.who, forecast.who_pid, number)
    return verdict._replace(limit_bytes=forecast.memory_limit_bytes or 0)


def _read_by(resource: str) -> str:
    """Return the source that tells of a resource, as the place of an alert; empty for Windows' memory."""
    return next((place for kind, place in READ_BY.items() if resource.startswith(kind)), "")


def _of_incident(incident: Incident) -> Verdict:
    level = min(incident.level, Level.INFO) if incident.rule in OVER else incident.level
    message, _, advice = text_now(incident, None)
    rule = incident.rule if incident.paused is None else BRAKE
    return Verdict(level, message or incident.message, advice, incident.resource, rule, incident=incident.id)


def _calm(forecasts: Sequence[Forecast], lately: Sequence[Transition], numbers: Mapping[Key, int]) -> Verdict:
    by_resource = {f.resource: f for f in forecasts}
    for row in reversed(lately):
        now = by_resource.get(row.resource)
        if now is None:
            continue
        # Memory filled within a second or two ends in a kill before any warning is possible.
        unwarned = row.rule == OOM_KILL and row.new > Level.OK and now.cause == "killed"
        if unwarned or (row.rule == MEMORY and row.new == Level.OK):
            kills = (r for r in reversed(lately) if r.rule == OOM_KILL and r.resource == row.resource)
            ended = with_victim(now, next((r for r in kills if r.new > Level.OK), None))
            return _of_forecast(ended, Level.OK, numbers, ended.cause if ended.cause in ENDINGS else "over")
    # The engine still looks for a trend; meanwhile a card, or RAM with swap, of which nothing is left is not fine. A
    # cgroup is: files fill it.
    scarce = (f for f in forecasts if f.resource == "ram" or f.resource.startswith("gpu"))
    full = next(filter(forecast_messages.is_full, scarce), None)
    if full is not None:
        return _of_forecast(replace(full, level=Level.INFO, cause="full"), Level.INFO, {})
    swapping = next(filter(forecast_messages.is_swapping, forecasts), None)
    if swapping is not None:
        message = say("RAM is full; {swap_bytes} of swap left", swap_bytes=swapping.swap_free_bytes or 0)
        advice = say("What is in swap is slow: stop what is not needed, or give more RAM (memory= in .wslconfig).")
        return Verdict(Level.INFO, message, advice, swapping.resource, "swapping")
    return Verdict(Level.OK, _fine(forecasts))


def _fine(forecasts: Sequence[Forecast]) -> Message:
    rooms = tuple(
        say("{resource} {room_bytes}", resource=f.resource, room_bytes=(f.headroom_bytes, f.capacity_bytes))
        for f in forecasts[:MAX_ROOMS]
    )
    if not rooms:
        return say("Nothing points to trouble")
    fine = [say("Memory is fine: {rooms} left", rooms=rooms[:count]) for count in range(len(rooms), 0, -1)]
    fitting = (message for message in fine[:-1] if len(str(message)) <= HEADLINE_CHARACTERS)  # never truncated
    return next(fitting, fine[-1])


class VerdictMetrics:
    """The verdict as metrics, with the sentence of its last change.

    Labels with current figures would create a new series at every scrape:
    https://prometheus.io/docs/practices/naming/#labels
    """

    def __init__(self) -> None:
        self._last: tuple[tuple[str, ...], tuple[Reading, ...]] = ((), ())

    def observe(self, verdict: Verdict) -> None:
        """Take the verdict of a tick."""
        labels = (verdict.label, verdict.subject, verdict.cause, str(verdict.who))
        if labels != self._last[0]:
            level = () if verdict.level is None else (Reading(LEVEL, int(verdict.level)),)
            self._last = labels, (*level, Reading(VERDICT, 1, (*labels, str(verdict.message))))

    def readings(self) -> Iterator[Reading]:
        """Return the verdict as of the last change; from any thread."""
        yield from self._last[1]
