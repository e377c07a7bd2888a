"""The brake's main class: pauses the growing job when memory is nearly exhausted, and resumes or stops it later."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pwd
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from wslgpud.brake import culprit, paused_job, policy, watchdog
from wslgpud.brake.culprit import CardHistory, GrowthHistory, Job, NotPaused
from wslgpud.brake.paused_job import OUTCOMES, Command, PausedJob, job_name
from wslgpud.brake.process_tree import ProcessKey, ProcessListing, ProcessTree, ScannedProcess, charged, scan
from wslgpud.brake.watchdog import HeldJob, HeldJobsFile, Watchdog
from wslgpud.config import BrakeSettings, ConfigError
from wslgpud.host import Host
from wslgpud.model import Forecast, GpuSample, Level, Reading, Snapshot, Transition
from wslgpud.words import Fact, MessageLike, cause, say

log = logging.getLogger(__name__)

RESOURCE_KINDS = ("ram", "gpu", "cgroup")
#: delay before the next attempt if no other job could be paused: a scan at each of ten samples per second costs too
#: much; it is cut short once less than this share is left of what was left at the last attempt
RETRY_SECONDS, RETRY_RATIO = 1.0, 0.9
#: a watchdog that exited while no job is paused is replaced at most once in this time
WATCHDOG_SECONDS = 10.0
#: interval of checks whether paused jobs are still paused, and of signs of life to the watchdog
CHECK_SECONDS = 1.0
#: jobs whose repeated pauses are counted
_MAX_REMEMBERED = 64
#: why no job was paused, for the log
_REASONS = {
    "nobody": "no program accounts for the lost memory",
    "several": "no single job accounts for most of the growth",
    "protected": "the program that grew is one that is never paused",
    "user": "the program that grew belongs to a user not listed in brake.users",
    "crowd": f"the job that grew has more than {culprit.MAX_MEMBERS} processes",
    "unsure": "the process that fills the GPU's memory is only a guess",
    "outside": "programs that may not be paused took more of it than the job that grows",
}


def allowed_users(settings: BrakeSettings) -> frozenset[int]:
    """Return the uids whose jobs may be paused. Raises ConfigError: unknown user or kind of memory."""
    if wrong := [name for name in settings.resources if name not in RESOURCE_KINDS]:
        raise ConfigError("brake.resources: {name} is not one of {names}", name=wrong[0], names=RESOURCE_KINDS)
    uids = set() if settings.users else {os.geteuid()}
    for name in settings.users:
        try:
            uids.add(pwd.getpwnam(name).pw_uid)
        except KeyError as error:
            raise ConfigError("brake.users: there is no user {name} here", name=name) from error
    return frozenset(uids)


class _Spared(NamedTuple):
    """An attempt that paused no job: when, what was left then, and the reason logged for it."""

    t: float
    left_bytes: int
    reason: str


class Brake:
    """Pauses and resumes jobs, one tick at a time. Other threads may use ``readings``, ``document``, ``commands``."""

    def __init__(self, settings: BrakeSettings, host: Host, folder: Path, watchdog: Watchdog) -> None:
        """Start with no paused jobs. Raises ConfigError: unknown user or kind of memory."""
        self._settings, self._host, self._watchdog = settings, host, watchdog
        self._users = allowed_users(settings)
        self._file = HeldJobsFile(folder)
        #: what people asked for, with the job's number, until the next tick; the limit is more than anyone types
        self.commands: deque[tuple[int, Command]] = deque(maxlen=100)
        #: by number, jobs of an earlier daemon that only somebody with more rights can resume
        self._last_number, self._stuck = self._file.read()
        self._paused: list[PausedJob] = []
        self._history = GrowthHistory(self._users)
        self._cards: dict[str, CardHistory] = {}
        #: the last spared job of each resource
        self._spared: dict[str, _Spared] = {}
        self._ends: Counter[str] = Counter()
        self._spared_counts: Counter[str] = Counter()
        self._pauses = 0
        self._pause_seconds: float | None = None
        #: by a job's first root, how often it was paused again and when it was last resumed automatically
        self._resumed: dict[ProcessKey, tuple[int, float]] = {}
        #: by resource, processes resumed by a user or after hold_minutes: not paused again until its warning clears
        self._exempt: dict[str, set[ProcessKey]] = {}
        self._readings: tuple[Reading, ...] = ()
        self._document: tuple[dict[str, Any], ...] = ()
        self._sign_t = -math.inf  # when the watchdog last heard of us
        self._publish()

    def tick(self, snapshot: Snapshot, forecasts: Iterable[Forecast], gpus: Iterable[GpuSample]) -> list[Transition]:
        """Pause jobs that are due, advance paused ones; return the changes to announce.

        ``gpus`` include the VRAM that programs report themselves.
        """
        now = {f.resource: f for f in forecasts if policy.resource_kind(f.resource) in self._settings.resources}
        cards = {f"gpu{gpu.index}": gpu for gpu in gpus}
        self._cards = {name: self._cards.get(name) or CardHistory(self._users) for name in cards.keys() & now}
        for name, card in self._cards.items():
            card.add(snapshot.mono, cards[name], now[name])
        ending = [job for job in self._paused if job.killed_t is not None]
        rows = [*self._review(ending, snapshot, now)]
        for name in {*self._exempt, *self._spared}:
            if name not in now or now[name].level <= Level.INFO:
                self._exempt.pop(name, None)
                self._spared.pop(name, None)
        # Before all else: memory may be gone by the next sample.
        for forecast in sorted(now.values(), key=lambda f: f.headroom_bytes / max(1, f.capacity_bytes)):
            due = policy.should_pause(forecast) and not policy.waits_for_zram(forecast, snapshot.value)
            if due and self._may_try(forecast, snapshot.mono):
                rows += self._pause(snapshot, forecast, now)
        while self.commands:
            number, command = self.commands.popleft()
            for job in self._paused:
                job.command = command if job.number == number else job.command
        rows += self._review([job for job in self._paused if job not in ending], snapshot, now)
        if self._history.is_due(snapshot.mono, now):
            self._history.add(snapshot.mono, self._scan().processes, now)
        seconds = CHECK_SECONDS if self._paused else WATCHDOG_SECONDS
        if (self._paused or not self._watchdog.alive()) and snapshot.mono - self._sign_t >= seconds:
            self._sign_t = snapshot.mono
            self._is_watched()
        self._publish()
        return rows

    def document(self) -> tuple[dict[str, Any], ...]:
        """Return the paused jobs for the status document, with untranslated messages."""
        return self._document

    def readings(self) -> Iterator[Reading]:
        yield from self._readings

    def held_processes(self) -> frozenset[ProcessKey]:
        """Return the paused processes: a signal would take effect only once they are resumed."""
        return frozenset[ProcessKey]().union(*(watchdog.keys(job.held) for job in self._paused if job.killed_t is None))

    def is_ending(self) -> bool:
        """Return whether a job was sent SIGTERM and still runs, with as little memory left as when it was paused."""
        return any(job.killed_t is not None for job in self._paused)

    def close(self) -> None:
        """Resume all paused jobs, and stop the watchdog."""
        for job in self._paused:
            watchdog.resume(job.held)
        self._paused.clear()
        with contextlib.suppress(OSError):  # a stale entry costs at most a needless SIGCONT
            self._file.write(self._last_number, self._stuck)
        self._watchdog.update(())
        self._watchdog.close()

    # choosing and pausing a job

    def _may_try(self, forecast: Forecast, t: float) -> bool:
        if len(self._paused) >= watchdog.MAX_HELD:
            return False
        last = self._spared.get(forecast.resource)
        return last is None or t - last.t >= RETRY_SECONDS or forecast.headroom_bytes < RETRY_RATIO * last.left_bytes

    def _scan(self) -> ProcessListing:
        seen = scan(self._host)
        return seen._replace(processes=charged(self._host, seen.processes, self._users))

    def _pause(self, snapshot: Snapshot, forecast: Forecast, now: Mapping[str, Forecast]) -> Iterator[Transition]:
        resource, t = forecast.resource, snapshot.mono
        seen = self._scan()
        choice = self._culprit(seen.processes, forecast, t)
        self._history.add(t, seen.processes, now)
        if choice is None:  # too early to tell; again at the next sample
            return
        reason = ""
        why: MessageLike = ""
        if isinstance(choice, Job):
            # A paused process may not have come to its stop yet, and one that was sent SIGTERM still runs.
            left_alone = self._exempt.get(resource, set()).union(*(watchdog.keys(job.held) for job in self._paused))
            if left_alone.isdisjoint(process.key for process in choice.members):
                why = self._hold(snapshot, forecast, choice, seen)
                if not why:
                    # Growth from here on is another job's.
                    self._history.clear()
                    self._history.add(t, seen.processes, now)
                    if card := self._cards.get(resource):
                        card.clear()
                    yield self._row(snapshot, resource)
                    return
                reason = "refused"
        elif not any(job.resource == resource for job in self._paused):
            reason = choice
        # Of a job that is left alone, or if none but those already paused qualifies, there is no news.
        last = self._spared.get(resource)
        if reason and (last is None or last.reason != reason):
            self._spared_counts[reason] += 1
            log.warning("%s is about to run out, but no job was paused: %s", resource, why or _REASONS[reason])
        self._spared[resource] = _Spared(t, forecast.headroom_bytes, reason)

    def _culprit(self, processes: Collection[ScannedProcess], forecast: Forecast, t: float) -> Job | NotPaused | None:
        """Return the job to pause, or why no job is paused; None if there is nothing earlier to compare with."""
        resource, kind = forecast.resource, policy.resource_kind(forecast.resource)
        ours, among = {os.getpid(), self._watchdog.pid}, None
        if kind == "gpu" and forecast.who_kind == "guess":
            if policy.attribution_probability(forecast) < self._settings.act_on_likelihood:
                return "unsure"
            return culprit.job_of_pid(ProcessTree(processes, {}, ours), self._users, forecast.who_pid or 0)
        if kind == "cgroup":
            group = resource.removeprefix("cgroup:").rstrip("/")
            among = {process.pid for process in processes if f"{process.cgroup}/".startswith(f"{group}/")}
        history = self._history if kind != "gpu" else self._cards.get(resource)
        held = history.measured(t, forecast, processes) if history else None
        return culprit.filling_job(held, self._users, ours, among) if held else None

    def _hold(self, snapshot: Snapshot, forecast: Forecast, job: Job, seen: ProcessListing) -> MessageLike:
        """Pause a job; return why that failed, or nothing."""
        t, left = snapshot.mono, forecast.headroom_bytes
        self._last_number += 1
        grown = job.growth_bytes / job.growth_seconds if job.growth_seconds > 0 else 0.0
        rate = max(0.0, grown or forecast.rate_bytes_per_second or 0.0)
        repeats = policy.repeats(*self._resumed.get(job.roots[0].key, (0, -math.inf)), t)
        paused = PausedJob(
            self._last_number,
            forecast.resource,
            job_name(job, snapshot, forecast),
            snapshot.wall,
            sum(process.memory_bytes for process in job.members),
            paused_job.run_seconds(job.members, time.clock_gettime(time.CLOCK_BOOTTIME)),
            job.roots[0].key,
            (),
            policy.PauseState(t, left, forecast.capacity_bytes, rate, repeats),
            forecast,
        )
        self._paused.append(paused)

        def register(held: HeldJob) -> MessageLike:
            paused.held = held
            return self._register()

        held, problem = paused_job.pause(self._host, job, seen, self._users, register)
        if problem:
            self._paused.remove(paused)
            self._register()
            return problem
        paused.held, paused.checked_t = held, t
        self._pauses += 1
        self._pause_seconds = self._host.clock.mono() - t
        after_ms = 1000 * self._pause_seconds
        log.warning("paused %s (processes: %d) %.0f ms after the sample", paused.who, len(held), after_ms)
        return ""

    def _register(self) -> MessageLike:
        """Give the list of paused jobs to the watchdog and the disk; return why that failed, or nothing."""
        if not self._is_watched():
            return say("the brake's watchdog does not answer")
        paused = {job.number: job.held for job in self._paused}
        try:
            self._file.write(self._last_number, paused | self._stuck)  # readers take the first few only
        except OSError as error:
            return say("{path} cannot be written: {why}", path=str(self._file.path), why=cause(error))
        return ""

    def _is_watched(self) -> bool:
        """Return whether the watchdog, or else another one, confirms the list of paused jobs.

        Another one has only our remaining capabilities: enough for our own user's jobs.
        """
        held = [job.held for job in self._paused]
        if self._watchdog.update(held):
            return True
        log.warning("the brake's watchdog exited; starting another one")
        self._watchdog.close()
        try:
            self._watchdog = Watchdog()
        except OSError as error:  # there is no memory for another process
            log.warning("the brake's watchdog cannot be started: %s", error)
            return False
        return self._watchdog.update(held)

    # paused jobs

    def _review(
        self, jobs: Iterable[PausedJob], snapshot: Snapshot, now: Mapping[str, Forecast]
    ) -> Iterator[Transition]:
        t = snapshot.mono
        for job in jobs:
            if how := self._advance(job, t, now.get(job.resource)):
                self._paused.remove(job)
                self._ends[how] += 1
                if how in ("owner", "time"):
                    self._exempt.setdefault(job.resource, set()).update(watchdog.keys(job.held))
                elif how == "room":
                    self._resumed[job.root] = job.state.repeats, t
                    for oldest in list(self._resumed)[:-_MAX_REMEMBERED]:
                        del self._resumed[oldest]
                self._register()
                log.warning("job %d, %s: %s", job.number, job.who, OUTCOMES[how])
                yield self._row(snapshot, job.resource, job.outcome(how, snapshot.wall))

    def _advance(self, job: PausedJob, t: float, now: Forecast | None) -> str:
        """Take the next step for a job; return how its pause ended (a key of ``OUTCOMES``), empty while it lasts."""
        left = None if now is None else now.headroom_bytes
        if job.killed_t is not None:
            return self._end(job, t, left)
        if t - job.checked_t >= CHECK_SECONDS:
            job.checked_t = t
            still = paused_job.is_paused(job.held)
            # Not stopped yet is not resumed: a process stops only when it is next scheduled on a CPU.
            if still is None or (job.stood_still and not still):
                watchdog.resume(job.held)  # the user may have resumed only a part of it
                return "ended" if still is None else "owner"
            job.stood_still = still
        minutes, after_hold = self._settings.hold_minutes, self._settings.after_hold
        job.state, step = policy.next_step(job.state, t, left, 60.0 * minutes, after_hold)  # type: ignore[arg-type]  # of these choices
        if "stop" in (job.command, step):
            return self._end(job, t, left)
        how = "owner" if job.command == "resume" else step
        if how != "hold":
            watchdog.resume(job.held)
            return how
        return ""

    def _end(self, job: PausedJob, t: float, left_bytes: int | None) -> Literal["", "stopped"]:
        """Send SIGTERM; send SIGKILL after the grace period, or at once if too little memory is left for it."""
        if job.killed_t is not None and paused_job.has_ended(job.held):
            return "stopped"
        if not policy.may_save(job.state, left_bytes) or (job.killed_t is not None and t >= job.killed_t):
            paused_job.kill(self._host, job.held, self._users)
            job.killed_t = t  # again at each tick: it may have forked
        elif job.killed_t is None:
            paused_job.terminate(job.held)
            job.killed_t = t + policy.TERM_SECONDS
        return ""

    # reporting

    def _row(self, snapshot: Snapshot, resource: str, outcome: Mapping[str, Fact] | None = None) -> Transition:
        here = [job for job in self._paused if job.resource == resource]
        return paused_job.row(resource, snapshot.wall, snapshot.mono, here, outcome)

    def _publish(self) -> None:
        # Immutable copies: other threads read them while the jobs change.
        self._readings = (
            Reading(policy.READY, int(self._watchdog.alive())),
            Reading(policy.HELD, len(self._paused)),
            Reading(policy.HELD_BYTES, sum(job.size_bytes for job in self._paused)),
            Reading(policy.PAUSES, self._pauses),
            *(Reading(policy.ENDS, count, (how,)) for how, count in self._ends.items()),
            *(Reading(policy.SPARED, count, (reason,)) for reason, count in self._spared_counts.items()),
            *([] if self._pause_seconds is None else [Reading(policy.PAUSE_TIME, round(self._pause_seconds, 3))]),
        )
        self._document = tuple(job.document() for job in self._paused)
