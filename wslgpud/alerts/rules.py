"""Every rule beyond the memory forecast, declared once as data, and the engine that evaluates them.

A rule measures one number per resource at a tick; its thresholds say from which value on, and after how long, there is
an alert, and its level. The text of a rule is in ``words/templates.toml`` under its name, detailed advice in
``alerts/RUNBOOK.md``. Levels of ``OTHERS`` are decided by other parts.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from wslgpud.alerts import measures, oom_kills
from wslgpud.alerts.measures import Measure, MeasureContext, Signal
from wslgpud.model import MEMORY, Forecast, Level, Snapshot, Transition
from wslgpud.risk.levels import BLIND, BLIND_WARNING_SECONDS
from wslgpud.words import ENGLISH, Fact, MessageLike, Translator

RUNBOOK = Path(__file__).with_name("RUNBOOK.md")
#: unclean ends of daemon or machine; opened once at the start, see ``look_back``
UNCLEAN_END = "unclean_end"
#: findings of the nightly stress runs, which open and close them, see ``wslgpud.stress.schedule``
VRAM_STRESS = "vram_stress"
#: a job that is paused until a user decides, see ``wslgpud.brake``
BRAKE = "brake"
OTHERS = (MEMORY, UNCLEAN_END, VRAM_STRESS, BRAKE)
#: kills from before the first start: never open, sent to nobody, see ``look_back``
KILLED_BEFORE = "killed_before"
#: the driver has been silent for so long that its memory is no longer the news
DRIVER_GONE = "gpu_driver_gone"
#: Windows has little memory left; ``app/return_cache.py`` may help
WINDOWS_MEMORY_LOW = "windows_memory_low"
#: the rule that the score counts and reports examine
OOM_KILL = "oom_kill"
#: a kill by systemd-oomd or earlyoom
DAEMON_KILL = "oom_daemon_kill"
#: an open alert whose resource has not been measured for this long is closed: its state is unknown
FORGET_SECONDS = 3600.0
#: momentary events announced per part of the machine within ``FLOOD_SECONDS``; more is a flood (such as a loop of
#: programs that hit their own limit). The metrics count all of them.
MAX_NEWS, FLOOD_SECONDS = 20, 600.0


class Threshold(NamedTuple):
    """From ``value`` on, once it has held for ``for_seconds``, the level is at least ``level``."""

    level: Level
    value: float
    for_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for one kind of problem.

    ``clear`` is the value below which (above, where ``falling``) it starts to be over, so that a value fluctuating
    around a threshold does not open and close it; ``clear_seconds`` is how long it must stay there. One that ``lapses``
    is over when it is not measured: a training that has ended holds nothing. A ``momentary`` problem is an event, which
    lapses, too: its end is not worth a message, and it stays open for ``clear_seconds`` only to keep a burst together.
    Whether memory is still short is left to the forecast.
    """

    name: str
    measure: Measure
    thresholds: tuple[Threshold, ...]
    clear: float
    clear_seconds: float
    momentary: bool = False
    lapses: bool = False

    @property
    def falling(self) -> bool:
        """Whether low values are the bad ones, as for free memory."""
        return self.clear > self.thresholds[0].value

    def beyond(self, value: float | None, threshold: float) -> bool:
        return value is not None and (value <= threshold if self.falling else value >= threshold)

    def reached(self, value: float) -> bool:
        """Return whether a value is beyond any threshold."""
        return any(self.beyond(value, threshold.value) for threshold in self.thresholds)


_GIB, _MIB = float(1 << 30), float(1 << 20)
#: kills and refusals that follow one another within this are one incident
BURST_SECONDS = 30.0
#: a faulty card stays faulty after its report; a clock that was set may be set again
_NEWS_SECONDS = 600.0
_W, _C = Level.WARNING, Level.CRITICAL


#: systemd-oomd or earlyoom has ended something before the kernel had to
_DAEMON_KILL = measures.happened(DAEMON_KILL, "ram", "daemon", "victim", "reason", "pid")


#: page cache given back to Windows, see ``app/return_cache.py``
_RETURNED = measures.happened("cache_returned", "windows", "freed_bytes", "available_bytes", "total_bytes")


def _happens(name: str, measure: Measure, level: Level, burst_seconds: float) -> Rule:
    """Declare a rule for momentary events."""
    return Rule(name, measure, (Threshold(level, 1.0),), 1.0, burst_seconds, momentary=True)


RULES: tuple[Rule, ...] = (
    _happens(OOM_KILL, oom_kills.oom_kills, _C, BURST_SECONDS),
    _happens(DAEMON_KILL, _DAEMON_KILL, _C, BURST_SECONDS),
    # https://github.com/microsoft/WSL/issues/41176: VRAM is exhausted although some looks free;
    # https://github.com/microsoft/WSL/issues/41224: preceded the loss of the host's display.
    _happens("vram_residency_failed", measures.residency_failures, _C, BURST_SECONDS),
    _happens("gpu_allocation_refused", measures.refused_allocations, _W, _NEWS_SECONDS),
    # https://github.com/microsoft/WSL/issues/40795, https://github.com/microsoft/WSL/issues/11612
    _happens("sessions_blocked", measures.happened("vmbus_starved", "machine", "order"), _W, _NEWS_SECONDS),
    # https://github.com/microsoft/WSL/issues/10873, https://github.com/microsoft/WSL/issues/9173: the drive below the
    # virtual disk fails or is full, and in the end nothing can be read.
    _happens("disk_failing", measures.failing_disks, _C, _NEWS_SECONDS),
    _happens("gpu_error", measures.xids, _W, _NEWS_SECONDS),
    Rule("gpu_lost", measures.lost_gpus, (Threshold(_C, 1, 5),), 1, 5),
    # Longer than a driver update or a reset by Windows (TDR) takes; ``blind`` has warned long before.
    Rule(DRIVER_GONE, measures.silent_driver, (Threshold(_C, 180),), 1, 5),
    # Share of time without progress, thrashing as in ``wslgpud_pressure_stalled_ratio``. Kernels without PSI: both
    # directions of swap at once, see ``measures``.
    Rule("swap_thrash", measures.thrashing, (Threshold(_W, 0.2, 10), Threshold(_C, 0.5, 20)), 0.1, 30),
    # Short dips are a card's normal regulation.
    Rule("gpu_throttled", measures.throttling, (Threshold(_W, 1, 60),), 1, 120),
    # For a card that NVML shows, ``risk`` reports that it is full and what was moved, by the same figures.
    Rule("vram_spill", measures.spill, (Threshold(_W, 256 * _MIB, 20), Threshold(_C, 2 * _GIB, 60)), 128 * _MIB, 60),
    # By Lindy's rule, as for other growth (risk/README.md, 3): growth that has taken a quarter of the room takes the
    # rest in more than one case in four. A cache that stops growing before is reported, but without a warning.
    Rule(
        "training_leak",
        measures.training_leaks,
        (Threshold(Level.INFO, 1e-9), Threshold(_W, 0.25)),
        1e-9,
        30,
        lapses=True,
    ),
    _happens("training_retries", measures.training_retries, _W, _NEWS_SECONDS),
    # Information, as it is unknown whether the data has sequences that long; less is within the error of the estimate.
    Rule(
        "training_length", measures.training_lengths, (Threshold(Level.INFO, 128 * _MIB),), 128 * _MIB, 30, lapses=True
    ),
    # The full, spilling card has its own warning: this is the cost.
    Rule("training_slowed", measures.training_slowed, (Threshold(Level.INFO, 3, 30),), 2, 60, lapses=True),
    # Windows' own detector of exhaustion (event 2004) fires when nearly all of the commit limit is used; Windows
    # programs fail before Linux ones do: https://github.com/microsoft/WSL/issues/41285
    Rule(WINDOWS_MEMORY_LOW, measures.windows_memory, (Threshold(_W, 0.06, 30), Threshold(_C, 0.025, 30)), 0.1, 60),
    Rule(
        "state_disk_full",
        measures.state_space,
        (Threshold(_W, 2 * _GIB, 5), Threshold(_C, 0.3 * _GIB, 5)),
        2.5 * _GIB,
        30,
    ),
    _happens("cache_returned", _RETURNED, Level.INFO, _NEWS_SECONDS),
    # The distribution's virtual disk grows on it, and becomes read-only when it is full:
    # https://github.com/microsoft/WSL/issues/6986
    Rule(
        "windows_disk_full",
        measures.windows_space,
        (Threshold(_W, 10 * _GIB, 5), Threshold(_C, 2 * _GIB, 5)),
        12 * _GIB,
        60,
    ),
    Rule("read_only_disk", measures.read_only, (Threshold(_C, 1, 5),), 1, 10),
    # Ten seconds until it is over, so that a driver that answers every other time does not open and close it.
    Rule(BLIND, measures.blind_resources, (Threshold(_W, BLIND_WARNING_SECONDS),), 0.1, 10),
    Rule("source_stale", measures.silent_sources, (Threshold(_W, 60),), 1, 5),
    _happens("clock_jump", measures.happened("clock_jump", "clock", "seconds"), Level.INFO, _NEWS_SECONDS),
    Rule("store_failing", measures.failing_store, (Threshold(_W, 1, 30), Threshold(_C, 1, 600)), 1, 10),
    Rule("store_damaged", measures.damaged_store, (Threshold(_W, 1),), 1, 10),
)


#: rules whose incidents may be older than the history that is read at the start
LASTING = (VRAM_STRESS, BRAKE, *(rule.name for rule in RULES if not rule.momentary))


@dataclass(slots=True)
class _State:
    level: Level = Level.OK
    since: dict[Level, float] = field(default_factory=dict)
    better_since: float | None = None
    seen: float = -math.inf
    facts: Mapping[str, Fact] = field(default_factory=dict)


class RuleEngine:
    """Evaluates the rules at each tick. Pure: its clock is the monotonic time of the snapshots."""

    def __init__(self, *, state_folder: str = "/", since_wall: float = math.inf) -> None:
        """Watch, among others, the disk of ``state_folder`` with the daemon's own data.

        Kernel messages from before the first tick count if newer than ``since_wall``: they came while no daemon ran.
        """
        self._context = MeasureContext(state_folder, since_wall)
        #: by rule, then by resource
        self._states: defaultdict[str, dict[str, _State]] = defaultdict(dict)
        self._news: dict[tuple[str, str], deque[float]] = {}

    def resume(self, rows: Iterable[Transition], mono: float) -> None:
        """Take over alerts left open by an earlier run, given their last rows, as if measured now.

        Each counts as having held for as long as its level requires, so that it does not ease only to worsen again. A
        momentary event has been over since its row: last night's kill is no current problem.
        """
        for row in rows:
            if (rule := rule_named(row.rule)) is None:
                continue
            if rule.momentary:
                self._states[row.rule][row.resource] = _State(level=row.new, better_since=row.mono)
                continue
            held = [one for one in rule.thresholds if one.level <= row.new]
            since = dict.fromkeys((one.level for one in held), -math.inf)
            self._states[row.rule][row.resource] = _State(level=row.new, seen=mono, since=since)
            self._context.resume(row, mono, max((one.value for one in held), default=0.0))

    def observe(
        self,
        snapshot: Snapshot,
        *,
        store_error: MessageLike = "",
        store_damage: MessageLike = "",
        forecasts: Iterable[Forecast] = (),
    ) -> list[Transition]:
        """Return the changes of level due to the next snapshot and its forecasts."""
        context = self._context
        context.advance(snapshot)
        context.store_error, context.store_damage, context.forecasts = store_error, store_damage, tuple(forecasts)
        changes: list[Transition | None] = []
        for rule in RULES:
            states = self._states[rule.name]
            signals = {
                signal.resource: signal
                for signal in rule.measure(context)
                # Nearly all of them, nearly always, are fine.
                if (signal.resource in states or rule.reached(signal.value))
                and self._is_news(rule, signal, snapshot.mono)
            }
            resources = sorted(signals.keys() | states.keys())
            changes += [self._step(rule, resource, signals.get(resource), snapshot) for resource in resources]
        return [change for change in changes if change is not None]

    def _is_news(self, rule: Rule, signal: Signal, now: float) -> bool:
        """Return whether to evaluate a signal; a flood in one part hides nothing in another.

        Parts are the topmost branches of the tree of cgroups: a user is in ``/user.slice/user-1001.slice``.
        """
        if not rule.momentary or not signal.resource.startswith("cgroup:"):
            return True
        part = "/".join(signal.resource.split("/")[:3])
        if (rule.name, part) not in self._news:  # containers come and go
            self._news = {k: t for k, t in self._news.items() if now - t[-1] < FLOOD_SECONDS}
        times = self._news.setdefault((rule.name, part), deque(maxlen=MAX_NEWS))
        if len(times) == MAX_NEWS and now - times[0] < FLOOD_SECONDS:
            return False
        times.append(now)
        return True

    def _step(self, rule: Rule, resource: str, signal: Signal | None, at: Snapshot) -> Transition | None:
        now, states = at.mono, self._states[rule.name]
        state = states.setdefault(resource, _State())
        old = state.level
        if signal is not None:
            state.seen, state.facts = now, signal.facts or state.facts
        if signal is not None or rule.momentary or rule.lapses:
            state.level = self._level(rule, state, None if signal is None else signal.value, now)
        elif now - state.seen > FORGET_SECONDS:
            state.level, state.since, state.facts = Level.OK, {}, {"unseen_seconds": now - state.seen}
        if state.level == Level.OK and not state.since:
            del states[resource]
        # A second event while the first is still open is news as well: another victim.
        if state.level == old and not (rule.momentary and signal is not None):
            return None
        return Transition(at.wall, now, resource, rule.name, old, state.level, facts=state.facts)

    @staticmethod
    def _level(rule: Rule, state: _State, value: float | None, now: float) -> Level:
        state.since = {s.level: state.since.get(s.level, now) for s in rule.thresholds if rule.beyond(value, s.value)}
        held = (s.level for s in rule.thresholds if now - state.since.get(s.level, math.inf) >= s.for_seconds)
        reached = max(held, default=Level.OK)
        target = max(reached, rule.thresholds[0].level) if rule.beyond(value, rule.clear) else reached
        if target >= state.level:
            state.better_since = None
            return max(reached, state.level)
        if state.better_since is None:
            state.better_since = now
        return target if now - state.better_since >= rule.clear_seconds else state.level


def rule_named(name: str) -> Rule | None:
    """Return the rule of this name; None for ``OTHERS`` and rules of other versions."""
    return next((rule for rule in RULES if rule.name == name), None)


def is_momentary(name: str) -> bool:
    rule = rule_named(name)
    return rule is not None and rule.momentary


def runbook(translator: Translator = ENGLISH, page: Path = RUNBOOK) -> dict[str, str]:
    """Return the advice by rule, in order: Markdown, one line per paragraph, each a template of the catalogues."""
    _, *parts = re.split(r"^## (\w+)\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        name: "\n\n".join(translator.template(" ".join(part.split())) for part in text.strip().split("\n\n"))
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }
