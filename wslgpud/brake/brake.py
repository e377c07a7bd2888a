"""The brake at work: looks at the machine near its limit, pauses who grows, and holds them until somebody decides."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pwd
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from wslgpud.alerts.messages import iso
from wslgpud.alerts.rules import BRAKE
from wslgpud.brake import brake_metrics as metrics
from wslgpud.brake import grip, hands, jobs, look, when
from wslgpud.brake.grip import Grip, HeldFile
from wslgpud.brake.jobs import Job, ProcessKey, ProcessTree
from wslgpud.brake.orders import Orders
from wslgpud.brake.watchdog import Watchdog
from wslgpud.config import BrakeSettings, ConfigError
from wslgpud.host import Host
from wslgpud.model import Forecast, Level, Reading, Snapshot, Transition
from wslgpud.risk.attribution import GROUP, full_name
from wslgpud.security.redaction import named
from wslgpud.words import Fact, Message, MessageLike, cause, say

log = logging.getLogger(__name__)

KINDS = ("ram", "gpu", "cgroup")
#: time between two looks at all processes: while something grows, and once half of the memory is gone
GROWING_SECONDS, HALF_FULL_SECONDS = 2.0, 15.0
#: looks that are remembered; who has grown is asked over at most so long, and over what there is where that is less
MOST_LOOKS, LONGEST_SECONDS, SHORTEST_SECONDS = 40, 60.0, 3.0
#: after nobody could be paused it is tried again so much later, not at each of ten samples a second
AGAIN_SECONDS = 1.0
#: whether a paused job still stands still is looked at once in so long
CHECK_SECONDS = 1.0
#: jobs of which it is remembered how often they were paused
_MOST_REMEMBERED = 64

#: what is said of a job that is paused no more, by what became of it
ENDED: Mapping[str, Message] = {
    "room": say("goes on, as there is room again"),
    "owner": say("goes on, as somebody wanted it to"),
    "time": say("goes on, as nobody has decided"),
    "stopped": say("was ended by order"),
    "ended": say("has ended"),
    "restart": say("goes on, as wslgpud has ended"),
}


def users_of(settings: BrakeSettings) -> frozenset[int]:
    """Return whose jobs may be paused. Raises ConfigError: no such user, or no such kind of memory."""
    if wrong := [name for name in settings.resources if name not in KINDS]:
        raise ConfigError("brake.resources: {name} is none of {names}", name=wrong[0], names=KINDS)
    found = set() if settings.users else {os.geteuid()}
    for name in settings.users:
        try:
            found.add(pwd.getpwnam(name).pw_uid)
        except KeyError as error:
            raise ConfigError("brake.users: there is no user {name} here", name=name) from error
    return frozenset(found)


def goes_on(resource: str, wall: float, mono: float) -> Transition:
    """Return the row of a resource of which an earlier daemon had paused a job: with that, it was let go on."""
    facts: dict[str, Fact] = {"end": "held", "outcome": ENDED["restart"]}
    return Transition(wall, mono, resource, BRAKE, Level.CRITICAL, Level.OK, facts=facts)


class _HeldBefore(NamedTuple):
    """What each process held at a moment, and what was left of each resource."""

    t: float
    held: Mapping[ProcessKey, int]
    left: Mapping[str, int]


@dataclass(slots=True)
class PausedJob:
    """A job that is paused; ``ends_t`` is when it is killed, once it was asked to end."""

    number: int
    resource: str
    who: MessageLike
    paused_wall: float
    size_bytes: int
    root: ProcessKey
    grip: Grip
    hold: when.Hold
    forecast: Forecast
    ends_t: float | None = None
    checked_t: float = 0.0
    stood_still: bool = False
    orders: list[str] = field(default_factory=list)


class Brake:
    """Pauses and lets go on, a tick at a time. ``readings`` and ``document`` are for other threads."""

    def __init__(self, settings: BrakeSettings, host: Host, folder: Path, watchdog: Watchdog) -> None:
        """Begin with nothing held. Raises ConfigError: a user or a kind of memory is not known."""
        self._settings, self._host, self._watchdog = settings, host, watchdog
        self._users = users_of(settings)
        self._file, self._orders = HeldFile(folder), Orders(folder)
        self._last, _ = self._file.read()
        self._held: list[PausedJob] = []
        self._looks: deque[_HeldBefore] = deque(maxlen=MOST_LOOKS)
        self._again: dict[str, tuple[float, str]] = {}
        self._counts: Counter[str] = Counter()
        self._spared: Counter[str] = Counter()
        self._pauses = 0
        self._pause_seconds: float | None = None
        #: by the first process of a job, how often it was paused, and when it was let go on for room
        self._before: dict[ProcessKey, tuple[int, float]] = {}
        #: by resource, processes that somebody wants to go on until it is calm
        self._let_be: dict[str, set[ProcessKey]] = {}
        self._told: tuple[Reading, ...] = ()
        self._shown: tuple[dict[str, Any], ...] = ()
        self._publish()

    def tick(self, snapshot: Snapshot, forecasts: Iterable[Forecast]) -> list[Transition]:
        """Pause who is to be paused, decide on those that are held; return what there is to say."""
        now = {f.resource: f for f in forecasts if when.kind_of(f.resource) in self._settings.resources}
        rows: list[Transition] = []
        for name in [name for name in self._let_be if name not in now or now[name].level <= Level.INFO]:
            del self._let_be[name]
        # The first thing: each of the ten samples a second may be the last one.
        for forecast in sorted(now.values(), key=lambda f: f.headroom_bytes / max(1, f.capacity_bytes)):
            if when.is_due(forecast) and self._may_try(forecast.resource, snapshot.mono):
                rows += self._pause(snapshot, forecast, now)
        rows += self._decide(snapshot, now)
        self._look_ahead(snapshot.mono, now)
        self._publish()
        return rows

    def document(self) -> tuple[dict[str, Any], ...]:
        """Return what is held as JSON, with messages."""
        return self._shown

    def readings(self) -> Iterator[Reading]:
        yield from self._told

    def close(self) -> None:
        """Let all go on: without us nobody would."""
        for held in self._held:
            grip.let_go(held.grip)
        self._held.clear()
        with contextlib.suppress(OSError):  # the worst that an entry too many does is another SIGCONT
            self._file.write(self._last, ())
        self._watchdog.tell(())
        self._watchdog.close()

    # whom, and how

    def _may_try(self, resource: str, t: float) -> bool:
        tried, _ = self._again.get(resource, (-AGAIN_SECONDS, ""))
        return t - tried >= AGAIN_SECONDS and len(self._held) < grip.MOST_HELD

    def _pause(self, snapshot: Snapshot, forecast: Forecast, now: Mapping[str, Forecast]) -> Iterator[Transition]:
        resource, t = forecast.resource, snapshot.mono
        programs = list(look.programs(self._host, groups=resource.startswith("cgroup:")))
        before = self._look_before(t, forecast)
        found = self._job(programs, before, forecast)
        self._remember(t, programs, now)
        here = any(held.resource == resource for held in self._held)
        let_be = self._let_be.get(resource, set())
        if (here or before is None) and found == "nobody":  # who grew is paused, or it is too early to tell
            return
        if isinstance(found, Job) and any(one.key in let_be for one in found.members):
            return
        why: MessageLike = ""
        if isinstance(found, Job):
            held, why = self._hold(snapshot, forecast, found, before)
            if held is not None:
                # Who grows from here on is somebody else.
                self._looks.clear()
                self._remember(t, programs, now)
                yield self._row(snapshot, resource)
                return
        reason = found if isinstance(found, str) else "refused"
        if self._again.get(resource, (0.0, ""))[1] != reason:
            self._spared[reason] += 1
            log.warning("%s runs out, and nobody is paused: %s%s", resource, reason, f" ({why})" if why else "")
        self._again[resource] = t, reason

    def _job(self, programs: Collection[jobs.Program], before: _HeldBefore | None, forecast: Forecast) -> Job | str:
        resource = forecast.resource
        tree = ProcessTree(programs, before.held if before is not None else {}, {os.getpid(), self._watchdog.pid})
        if when.kind_of(resource) == "gpu":
            if forecast.who_pid is None or when.certainty(forecast) < self._settings.act_on_likelihood:
                return "unsure"
            return jobs.named(tree, self._users, forecast.who_pid)
        if before is None:
            return "nobody"
        lost, among = before.left.get(resource, forecast.headroom_bytes) - forecast.headroom_bytes, None
        if when.kind_of(resource) == "cgroup":
            group = resource.removeprefix("cgroup:").rstrip("/")
            among = {one.pid for one in programs if f"{one.cgroup}/".startswith(f"{group}/")}
        return jobs.grower(tree, self._users, lost, among)

    def _hold(
        self, snapshot: Snapshot, forecast: Forecast, job: Job, before: _HeldBefore | None
    ) -> tuple[PausedJob | None, MessageLike]:
        t, left = snapshot.mono, forecast.headroom_bytes
        self._last += 1
        seconds = t - before.t if before is not None else 0.0
        taking = max(0.0, job.grown_bytes / seconds if seconds > 0 else forecast.rate_bytes_per_second or 0.0)
        times = when.times_again(*self._before.get(job.roots[0].key, (0, -math.inf)), t)
        held = PausedJob(
            self._last,
            forecast.resource,
            _called(job, snapshot, forecast),
            snapshot.wall,
            sum(one.held_bytes for one in job.members),
            job.roots[0].key,
            Grip(()),
            when.Hold(t, left, forecast.capacity_bytes, taking, times),
            forecast,
        )
        self._held.append(held)

        def note(now_held: Grip) -> MessageLike:
            held.grip = now_held
            return self._note()

        done, problem = hands.hold(self._host, job, self._users, note)
        if done is None:
            self._held.remove(held)
            self._note()
            return None, problem
        held.grip, held.checked_t = done, t
        self._pauses += 1
        self._pause_seconds = self._host.clock.mono() - t
        after_ms = 1000 * self._pause_seconds
        log.warning("paused %s (processes: %d) %.0f ms after the sample", held.who, len(done.members), after_ms)
        return held, ""

    def _note(self) -> MessageLike:
        """Have the watchdog and the disk know what is held; return why they cannot, or nothing."""
        grips = [(held.number, held.grip) for held in self._held]
        if not self._watchdog.tell(one for _, one in grips):
            self._revive()
            if not self._watchdog.tell(one for _, one in grips):
                return say("the brake's watchdog does not answer")
        try:
            self._file.write(self._last, grips)
        except OSError as error:
            return say("{path} cannot be written: {why}", path=str(self._file.path), why=cause(error))
        return ""

    def _revive(self) -> None:
        """Start another watchdog, which has the rights that we have left: enough for our own user's jobs."""
        log.warning("the brake's watchdog has ended; starting another one")
        self._watchdog.close()
        self._watchdog = Watchdog()

    # those that are held

    def _decide(self, snapshot: Snapshot, now: Mapping[str, Forecast]) -> Iterator[Transition]:
        t = snapshot.mono
        for number, order in self._orders.new():
            for held in self._held:
                if held.number == number:
                    held.orders.append(order)
        for held in list(self._held):
            if how := self._become(held, t, now.get(held.resource)):
                self._held.remove(held)
                self._counts[how] += 1
                if how in ("owner", "time"):
                    members = {(one.pid, one.start_ticks) for one in held.grip.members}
                    self._let_be.setdefault(held.resource, set()).update(members)
                elif how == "room":
                    self._before[held.root] = held.hold.again, t
                    for oldest in list(self._before)[:-_MOST_REMEMBERED]:
                        del self._before[oldest]
                self._note()
                log.warning("job %d, %s: %s", held.number, held.who, ENDED[how])
                facts = {"outcome": ENDED[how], "who": held.who, "held_seconds": snapshot.wall - held.paused_wall}
                yield self._row(snapshot, held.resource, facts, held.forecast)

    def _become(self, held: PausedJob, t: float, now: Forecast | None) -> str:
        """Return what has become of a job, nothing while it is held."""
        if held.ends_t is not None:
            if not hands.ended(held.grip):
                if t >= held.ends_t:
                    hands.kill(self._host, held.grip, self._users)
                return ""
            return "stopped"
        if t - held.checked_t >= CHECK_SECONDS:
            held.checked_t = t
            still = hands.is_held(held.grip)
            # Who has not been given a processor yet has not come to a stop yet, either.
            if still is None or (held.stood_still and not still):
                grip.let_go(held.grip)  # all of it, if only a part was
                return "ended" if still is None else "owner"
            held.stood_still = still
        orders, held.orders = held.orders, []
        left = None if now is None else now.headroom_bytes
        minutes, way = self._settings.hold_minutes, self._settings.after_hold
        held.hold, step = when.after(held.hold, t, left, 60.0 * minutes, way)  # type: ignore[arg-type]  # of these choices
        if "stop" in orders or step == "stop":
            hands.terminate(held.grip)
            held.ends_t = t + hands.TERM_SECONDS
            return ""
        how = "owner" if "resume" in orders else step
        if how != "hold":
            grip.let_go(held.grip)
            return how
        return ""

    # what is remembered

    def _look_ahead(self, t: float, now: Mapping[str, Forecast]) -> None:
        """Look at all processes now and then, so that it is known who has grown when that is asked."""
        watched = [f for name, f in now.items() if when.kind_of(name) != "gpu" and f.capacity_bytes > 0]
        growing = any(f.level >= Level.INFO for f in watched)
        half_full = any(f.headroom_bytes < f.capacity_bytes / 2 for f in watched)
        seconds = GROWING_SECONDS if growing else HALF_FULL_SECONDS
        if (growing or half_full) and (not self._looks or t - self._looks[-1].t >= seconds):
            self._remember(t, look.programs(self._host), now)

    def _remember(self, t: float, programs: Iterable[jobs.Program], now: Mapping[str, Forecast]) -> None:
        held = {one.key: one.held_bytes for one in programs}
        self._looks.append(_HeldBefore(t, held, {name: f.headroom_bytes for name, f in now.items()}))

    def _look_before(self, t: float, forecast: Forecast) -> _HeldBefore | None:
        """Return the look from which on growth is asked for: that at which it began, if there is one of then."""
        window = min(LONGEST_SECONDS, max(SHORTEST_SECONDS, forecast.window_seconds or 0.0))
        known = [one for one in self._looks if forecast.resource in one.left]
        return next((one for one in reversed(known) if t - one.t >= window), known[0] if known else None)

    # what is said

    def _row(
        self,
        snapshot: Snapshot,
        resource: str,
        outcome: Mapping[str, Fact] | None = None,
        forecast: Forecast | None = None,
    ) -> Transition:
        """Return the row of how things stand with a resource: who is paused, or what has become of the last one."""
        here = [held for held in self._held if held.resource == resource]
        if not here:
            facts = {"end": "held", **(outcome or {})}
            return Transition(snapshot.wall, snapshot.mono, resource, BRAKE, Level.CRITICAL, Level.OK, facts=facts)
        last = here[-1]
        facts = {
            "job": last.number,
            "who": last.who,
            "paused_clock": last.paused_wall,
            "left_bytes": last.hold.left_bytes,
            "count": len(last.grip.members),
            **({"more": len(here) - 1} if len(here) > 1 else {}),
        }
        told = forecast or last.forecast
        return Transition(
            snapshot.wall, snapshot.mono, resource, BRAKE, Level.OK, Level.CRITICAL, forecast=told, facts=facts
        )

    def _publish(self) -> None:
        # Made ready here: other threads must not walk through what changes meanwhile.
        self._told = (
            Reading(metrics.READY, int(self._watchdog.alive())),
            Reading(metrics.HELD, len(self._held)),
            Reading(metrics.HELD_BYTES, sum(held.size_bytes for held in self._held)),
            Reading(metrics.PAUSES, self._pauses),
            *(Reading(metrics.ENDS, count, (how,)) for how, count in self._counts.items()),
            *(Reading(metrics.SPARED, count, (reason,)) for reason, count in self._spared.items()),
            *([] if self._pause_seconds is None else [Reading(metrics.PAUSE_SECONDS, round(self._pause_seconds, 3))]),
        )
        self._shown = tuple(
            {
                "job": held.number,
                "resource": held.resource,
                "who": held.who,
                "paused": iso(held.paused_wall),
                "left_bytes": held.hold.left_bytes,
                "needed_bytes": round(held.hold.needed_bytes),
                "size_bytes": held.size_bytes,
                "processes": len(held.grip.members),
                "frozen": bool(held.grip.cgroup),
                "ending": held.ends_t is not None,
            }
            for held in self._held
        )


def _called(job: Job, snapshot: Snapshot, forecast: Forecast) -> MessageLike:
    """Return what a job is called: as the forecast does if it means the same, else by who has grown most."""
    pids = {one.pid for one in job.members}
    if forecast.who_pid in pids and forecast.who:
        return forecast.who
    if len(job.roots) > 1:
        return Message(GROUP, {"count": len(job.roots), "name": named(job.roots[0].name)})
    root = job.roots[0]
    command = next((p.command for p in snapshot.processes if p.key == root.key and p.command), named(root.name))
    return full_name(command, root.pid)
