"""The brake at work: near the limit of memory it pauses the job that grows, and holds it until somebody decides."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pwd
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from wslgpud.brake import brake_metrics as metrics
from wslgpud.brake import culprit, held_jobs, paused_job, pauser, policy
from wslgpud.brake.commands import CommandFile
from wslgpud.brake.culprit import Job
from wslgpud.brake.growth_history import SHORTEST_SECONDS, Baseline, GrowthHistory, own_tree, shared_tree
from wslgpud.brake.held_jobs import HeldJob, HeldJobsFile
from wslgpud.brake.paused_job import OUTCOMES, PausedJob, job_name
from wslgpud.brake.process_scan import ProcessListing, scan
from wslgpud.brake.process_tree import ProcessKey, ProcessTree, ScannedProcess
from wslgpud.brake.watchdog import Watchdog
from wslgpud.config import BrakeSettings, ConfigError
from wslgpud.host import Host
from wslgpud.model import Forecast, Level, Reading, Snapshot, Transition
from wslgpud.words import MessageLike, cause, say

log = logging.getLogger(__name__)

RESOURCE_KINDS = ("ram", "gpu", "cgroup")
#: after nobody could be paused it is tried again so much later, not at each of ten samples a second
RETRY_SECONDS = 1.0
#: a watchdog that has ended is replaced at most once in so long
WATCHDOG_SECONDS = 10.0
#: whether a paused job still stands still is checked once in so long
CHECK_SECONDS = 1.0
#: jobs of which it is remembered how often they were paused
_MOST_REMEMBERED = 64


def allowed_users(settings: BrakeSettings) -> frozenset[int]:
    """Return whose jobs may be paused. Raises ConfigError: no such user, or no such kind of memory."""
    if wrong := [name for name in settings.resources if name not in RESOURCE_KINDS]:
        raise ConfigError("brake.resources: {name} is none of {names}", name=wrong[0], names=RESOURCE_KINDS)
    found = set() if settings.users else {os.geteuid()}
    for name in settings.users:
        try:
            found.add(pwd.getpwnam(name).pw_uid)
        except KeyError as error:
            raise ConfigError("brake.users: there is no user {name} here", name=name) from error
    return frozenset(found)


class Brake:
    """Pauses and resumes, a tick at a time. ``readings`` and ``document`` are for other threads."""

    def __init__(self, settings: BrakeSettings, host: Host, folder: Path, watchdog: Watchdog) -> None:
        """Begin with nothing held. Raises ConfigError: a user or a kind of memory is not known."""
        self._settings, self._host, self._watchdog = settings, host, watchdog
        self._users = allowed_users(settings)
        self._file, self._commands = HeldJobsFile(folder), CommandFile(folder)
        self._last_number, _ = self._file.read()
        self._paused: list[PausedJob] = []
        self._history = GrowthHistory()
        #: by resource, when nobody could be paused, and why
        self._spared: dict[str, tuple[float, str]] = {}
        self._ends: Counter[str] = Counter()
        self._spared_counts: Counter[str] = Counter()
        self._pauses = 0
        self._pause_seconds: float | None = None
        #: by the first process of a job, how often it was paused, and when it was resumed for room
        self._resumed: dict[ProcessKey, tuple[int, float]] = {}
        #: by resource, processes that somebody wants to go on until it is calm
        self._exempt: dict[str, set[ProcessKey]] = {}
        self._readings: tuple[Reading, ...] = ()
        self._document: tuple[dict[str, Any], ...] = ()
        #: before then no other watchdog is started for one that has ended
        self._next_watchdog_t = -math.inf
        self._publish()

    def tick(self, snapshot: Snapshot, forecasts: Iterable[Forecast]) -> list[Transition]:
        """Pause who is to be paused, decide on those that are held; return what there is to say."""
        now = {f.resource: f for f in forecasts if policy.resource_kind(f.resource) in self._settings.resources}
        ending = self._ending()
        rows = [*self._review(ending, snapshot, now)]
        for name in {*self._exempt, *self._spared}:
            if name not in now or now[name].level <= Level.INFO:
                self._exempt.pop(name, None)
                self._spared.pop(name, None)
        # The first thing: each of the ten samples a second may be the last one.
        for forecast in sorted(now.values(), key=lambda f: f.headroom_bytes / max(1, f.capacity_bytes)):
            if policy.should_pause(forecast) and self._may_try(forecast.resource, snapshot.mono):
                rows += self._pause(snapshot, forecast, now)
        self._take_commands()
        rows += self._review([job for job in self._paused if job not in ending], snapshot, now)
        if self._history.is_due(snapshot.mono, now):
            self._history.add(snapshot.mono, scan(self._host).processes, now)
        if not self._watchdog.alive() and snapshot.mono >= self._next_watchdog_t:
            self._next_watchdog_t = snapshot.mono + WATCHDOG_SECONDS
            self._restart_watchdog()
            if self._paused:
                self._register()
        self._publish()
        return rows

    def document(self) -> tuple[dict[str, Any], ...]:
        """Return what is held as JSON, with messages."""
        return self._document

    def readings(self) -> Iterator[Reading]:
        yield from self._readings

    def held_processes(self) -> frozenset[ProcessKey]:
        """Return who stands still by our doing: a signal would reach them only once they are resumed."""
        return frozenset[ProcessKey]().union(*(job.keys for job in self._paused if job.killed_t is None))

    def is_ending(self) -> bool:
        """Tell whether a job runs that was asked to end, with as little memory left as when it was paused."""
        return bool(self._ending())

    def close(self) -> None:
        """Resume all: without us nobody would."""
        for job in self._paused:
            held_jobs.resume(job.held)
        self._paused.clear()
        with contextlib.suppress(OSError):  # the worst that an entry too many does is another SIGCONT
            self._file.write(self._last_number, ())
        self._watchdog.update(())
        self._watchdog.close()

    def _ending(self) -> list[PausedJob]:
        return [job for job in self._paused if job.killed_t is not None]

    # whom, and how

    def _may_try(self, resource: str, t: float) -> bool:
        tried, _ = self._spared.get(resource, (-math.inf, ""))
        return t - tried >= RETRY_SECONDS and len(self._paused) < held_jobs.MOST_HELD

    def _pause(self, snapshot: Snapshot, forecast: Forecast, now: Mapping[str, Forecast]) -> Iterator[Transition]:
        resource, t = forecast.resource, snapshot.mono
        seen = scan(self._host, cgroups=resource.startswith("cgroup:"))
        before = self._history.before(t, forecast)
        found = self._culprit(seen.processes, before, forecast, t)
        self._history.add(t, seen.processes, now)
        here = any(job.resource == resource for job in self._paused)
        if (here or before is None) and found == "nobody":  # who grew is paused, or it is too early to tell
            return
        why: MessageLike = ""
        if isinstance(found, Job):
            # Who is held may still be on its way to a stop, or to its end.
            left_alone = self._exempt.get(resource, set()).union(*(job.keys for job in self._paused))
            if any(one.key in left_alone for one in found.members):
                return
            why = self._hold(snapshot, forecast, found, seen, before)
            if not why:
                # Who grows from here on is somebody else.
                self._history.clear()
                self._history.add(t, seen.processes, now)
                yield self._row(snapshot, resource)
                return
        reason = found if isinstance(found, str) else "refused"
        if self._spared.get(resource, (0.0, ""))[1] != reason:
            self._spared_counts[reason] += 1
            log.warning("%s runs out, and nobody is paused: %s%s", resource, reason, f" ({why})" if why else "")
        self._spared[resource] = t, reason

    def _culprit(
        self, processes: Collection[ScannedProcess], before: Baseline | None, forecast: Forecast, t: float
    ) -> Job | str:
        resource, kind = forecast.resource, policy.resource_kind(forecast.resource)
        ours = {os.getpid(), self._watchdog.pid}
        if kind == "gpu":
            if forecast.who_pid is None or policy.attribution_probability(forecast) < self._settings.act_on_likelihood:
                return "unsure"
            return culprit.job_of_pid(ProcessTree(processes, {}, ours), self._users, forecast.who_pid)
        if before is None:
            return "nobody"
        among = None
        if kind == "cgroup":
            group = resource.removeprefix("cgroup:").rstrip("/")
            among = {one.pid for one in processes if f"{one.cgroup}/".startswith(f"{group}/")}

        def since(baseline: Baseline, least_bytes: float = 0.0) -> Job | culprit.NotPaused:
            lost = baseline.left_bytes.get(resource, forecast.headroom_bytes) - forecast.headroom_bytes
            if lost < least_bytes:
                return "nobody"
            found = culprit.growing_job(own_tree(processes, baseline, ours), self._users, lost, among)
            if found != "nobody":
                return found
            # What is shared counts for each that has mapped it, so it is asked for only where that explains the loss.
            return culprit.growing_job(shared_tree(processes, baseline, ours), self._users, lost, among)

        over_all, recent = since(before), self._history.before(t, forecast, SHORTEST_SECONDS)
        if recent is None or recent.t <= before.t:
            return over_all
        grown = shared_tree(processes, recent, ours).growth_bytes
        still = sum(map(grown, over_all.members)) if isinstance(over_all, Job) else 0
        return culprit.narrowed(over_all, since(recent, culprit.BREATH_RATIO * forecast.capacity_bytes), still)

    def _hold(
        self, snapshot: Snapshot, forecast: Forecast, job: Job, seen: ProcessListing, before: Baseline | None
    ) -> MessageLike:
        """Pause a job; return why that could not be, or nothing."""
        t, left = snapshot.mono, forecast.headroom_bytes
        self._last_number += 1
        # Of a card nobody's growth is known, only how fast all of it goes.
        grown = job.growth_bytes / (t - before.t) if before is not None and t > before.t else 0.0
        rate = max(0.0, grown or forecast.rate_bytes_per_second or 0.0)
        repeats = policy.repeats(*self._resumed.get(job.roots[0].key, (0, -math.inf)), t)
        paused = PausedJob(
            self._last_number,
            forecast.resource,
            job_name(job, snapshot, forecast),
            snapshot.wall,
            sum(one.memory_bytes for one in job.members),
            paused_job.run_seconds(job.members, time.clock_gettime(time.CLOCK_BOOTTIME)),
            job.roots[0].key,
            HeldJob(()),
            policy.PauseState(t, left, forecast.capacity_bytes, rate, repeats),
            forecast,
        )
        self._paused.append(paused)

        def register(held: HeldJob) -> MessageLike:
            paused.held = held
            return self._register()

        held, problem = pauser.pause(self._host, job, seen, self._users, register)
        if held is None:
            self._paused.remove(paused)
            self._register()
            return problem
        paused.held, paused.checked_t = held, t
        self._pauses += 1
        self._pause_seconds = self._host.clock.mono() - t
        after_ms = 1000 * self._pause_seconds
        log.warning("paused %s (processes: %d) %.0f ms after the sample", paused.who, len(held.processes), after_ms)
        return ""

    def _register(self) -> MessageLike:
        """Have the watchdog and the disk know what is held; return why they cannot, or nothing."""
        jobs = [(job.number, job.held) for job in self._paused]
        if not self._watchdog.update(held for _, held in jobs):
            self._restart_watchdog()
            if not self._watchdog.update(held for _, held in jobs):
                return say("the brake's watchdog does not answer")
        try:
            self._file.write(self._last_number, jobs)
        except OSError as error:
            return say("{path} cannot be written: {why}", path=str(self._file.path), why=cause(error))
        return ""

    def _restart_watchdog(self) -> None:
        """Start another watchdog, which has the rights that we have left: enough for our own user's jobs."""
        log.warning("the brake's watchdog has ended; starting another one")
        self._watchdog.close()
        self._watchdog = Watchdog()

    # those that are held

    def _take_commands(self) -> None:
        for number, command in self._commands.new():
            for job in self._paused:
                if job.number == number:
                    job.commands.append(command)

    def _review(
        self, jobs: Iterable[PausedJob], snapshot: Snapshot, now: Mapping[str, Forecast]
    ) -> Iterator[Transition]:
        t = snapshot.mono
        for job in jobs:
            if how := self._advance(job, t, now.get(job.resource)):
                self._paused.remove(job)
                self._ends[how] += 1
                if how in ("owner", "time"):
                    self._exempt.setdefault(job.resource, set()).update(job.keys)
                elif how == "room":
                    self._resumed[job.root] = job.state.repeats, t
                    for oldest in list(self._resumed)[:-_MOST_REMEMBERED]:
                        del self._resumed[oldest]
                self._register()
                log.warning("job %d, %s: %s", job.number, job.who, OUTCOMES[how])
                yield self._row(snapshot, job.resource, job.outcome(how, snapshot.wall), job.forecast)

    def _advance(self, job: PausedJob, t: float, now: Forecast | None) -> str:
        """Do what is due for a job; return what has become of it, nothing while it is held."""
        left = None if now is None else now.headroom_bytes
        if job.killed_t is not None:
            return self._end(job, t, left)
        if t - job.checked_t >= CHECK_SECONDS:
            job.checked_t = t
            still = pauser.is_paused(job.held)
            # Who has not been given a processor yet has not come to a stop yet, either.
            if still is None or (job.stood_still and not still):
                held_jobs.resume(job.held)  # all of it, if only a part was
                return "ended" if still is None else "owner"
            job.stood_still = still
        commands, job.commands = job.commands, []
        minutes, after_hold = self._settings.hold_minutes, self._settings.after_hold
        job.state, step = policy.next_step(job.state, t, left, 60.0 * minutes, after_hold)  # type: ignore[arg-type]  # of these choices
        if "stop" in commands or step == "stop":
            return self._end(job, t, left)
        how = "owner" if "resume" in commands else step
        if how != "hold":
            held_jobs.resume(job.held)
            return how
        return ""

    def _end(self, job: PausedJob, t: float, left_bytes: int | None) -> Literal["", "stopped"]:
        """Ask a job to end; kill it when it has not in its time, or when too little is left to wait for it."""
        if job.killed_t is not None and pauser.has_ended(job.held):
            return "stopped"
        if not policy.may_save(job.state, left_bytes) or (job.killed_t is not None and t >= job.killed_t):
            pauser.kill(self._host, job.held, self._users)
            job.killed_t = t  # and at each tick from now on: it may have started others
        elif job.killed_t is None:
            pauser.terminate(job.held)
            job.killed_t = t + policy.TERM_SECONDS
        return ""

    # what is said

    def _row(
        self,
        snapshot: Snapshot,
        resource: str,
        outcome: Mapping[str, Any] | None = None,
        forecast: Forecast | None = None,
    ) -> Transition:
        here = [job for job in self._paused if job.resource == resource]
        return paused_job.row(snapshot, resource, here, outcome or {}, forecast)

    def _publish(self) -> None:
        # Made ready here: other threads must not walk through what changes meanwhile.
        self._readings = (
            Reading(metrics.READY, int(self._watchdog.alive())),
            Reading(metrics.HELD, len(self._paused)),
            Reading(metrics.HELD_BYTES, sum(job.size_bytes for job in self._paused)),
            Reading(metrics.PAUSES, self._pauses),
            *(Reading(metrics.ENDS, count, (how,)) for how, count in self._ends.items()),
            *(Reading(metrics.SPARED, count, (reason,)) for reason, count in self._spared_counts.items()),
            *([] if self._pause_seconds is None else [Reading(metrics.PAUSE_SECONDS, round(self._pause_seconds, 3))]),
        )
        self._document = tuple(job.document() for job in self._paused)
