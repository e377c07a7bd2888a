"""A daemon's server with a machine of our choosing behind it, so that each state of the page can be seen."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, select

from tests.hosts.machines import HERE as HOSTS
from tests.support.servers import free_port
from wslgpud import config
from wslgpud.advise import doctor
from wslgpud.advise.checkups import Checkups
from wslgpud.alerts.incidents import IncidentLedger, OpenIncident, UnseenLoss
from wslgpud.alerts.messages import compose
from wslgpud.app.catalogue import catalogue
from wslgpud.host import RecordedHost
from wslgpud.metrics import MetricSpec
from wslgpud.model import (
    Forecast,
    Level,
    Number,
    Observation,
    Reading,
    Sample,
    Snapshot,
    SourceReport,
    StressFinding,
    StressResult,
    StressVerdict,
    Transition,
)
from wslgpud.risk import risk_metrics
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.trace import read_trace
from wslgpud.sampling.assessor import Assessor
from wslgpud.serve import HttpServer, Publisher, api, api_history, base_routes, commands
from wslgpud.serve.status import TickState, status
from wslgpud.sources.memory import MEMINFO
from wslgpud.store import Store, schema
from wslgpud.store.codec import Summary
from wslgpud.store.upkeep import write_summaries
from wslgpud.verdict import NEWS_SECONDS, blindness, decide
from wslgpud.words import MessageLike, say, translator

TRACES = Path(__file__).parent.parent / "traces"
_LINES = {
    "total": "MemTotal",
    "available": "MemAvailable",
    "free": "MemFree",
    "cached": "Cached",
    "anon": "AnonPages",
    "shmem": "Shmem",
    "buffers": "Buffers",
    "dirty": "Dirty",
}
_CARD = {
    "total_bytes": "gpu_memory_total_bytes",
    "used_bytes": "gpu_memory_used_bytes",
    "free_bytes": "gpu_memory_free_bytes",
    "utilization_ratio": "gpu_utilization_ratio",
    "power_watts": "gpu_power_watts",
    "temperature_celsius": "gpu_temperature_celsius",
}


#: a source that has not answered by then is one that does not
MAX_TICKS = 400
#: for recorded machines: on a busy one the stand-in of a driver takes its time, too
PATIENT = config.Config(sampling=config.Sampling(gpu_timeout_seconds=30.0))


#: what a stress run says of a card that has become slower, see ``wslgpud.stress.comparison``
FELL = say(
    "{figure} fell by {percent} at once: {now}, usually {usual}",
    figure=say("write bandwidth"),
    percent="11.0 %",
    now="712 GB/s",
    usual="800 GB/s",
)


class StageClock:
    """The real time, until it is moved or stopped."""

    def __init__(self) -> None:
        self.offset = 0.0
        self._stopped: tuple[float, float] | None = None

    def stop(self) -> None:
        """Stop the clock, so that values do not go stale while a busy machine is slow to show them."""
        self._stopped = time.monotonic(), time.time()

    def mono(self) -> float:
        return (self._stopped[0] if self._stopped else time.monotonic()) + self.offset

    def wall(self) -> float:
        return (self._stopped[1] if self._stopped else time.time()) + self.offset


class Stage:
    """A store, a publisher and a server, filled by the test."""

    def __init__(
        self, folder: Path, port: int = 0, database: Path | str | None = None, web: str = "", name: str = ""
    ) -> None:
        self.clock = StageClock()
        self.web = web
        self.database = database or folder / "page.db"
        #: the machine whose history it is; see tests/bench/year.py
        self.name = name or ("year" if database else "stage")
        self.ledger = IncidentLedger((), 0.0, 0.0)
        self.said: list[Transition] = []
        #: whether what is known is sampled again and again
        self.ticking = False
        #: what runs now, see ``wslgpud.active_runs``
        self.running: list[dict[str, Any]] = []
        #: whom the doctor sees
        self.machine = "no-gpu"
        #: how things stand, in a language
        self.known: Callable[[str], dict[str, Any]] | None = None
        #: a job that was lost, until somebody has seen it
        self.lost: UnseenLoss | None = None
        #: lost jobs that somebody has seen
        self.seen: list[int] = []
        #: what the daemon would decide, by language; its own verdict where a test says nothing
        self.verdict: dict[str, dict[str, Any]] = {}
        self.reopen(port or free_port())  # it may be left and taken again

    def reopen(self, port: int = 0) -> None:
        """Open the database, and serve."""
        self.store = Store(self.database, host_name=self.name, clock=self.clock)
        self.serve(port)

    def serve(self, port: int = 0) -> None:
        """Start the server anew, as a daemon that was restarted."""
        self.publisher = Publisher(catalogue(), self.clock)
        table = [
            *base_routes(self.publisher, self.now),
            *api.routes(self.publisher, self.now, self.store.stats, Checkups(self.checkup, self.clock).last),
            commands.seen_route(self.see),
            *api_history.routes(self.publisher, catalogue(), lambda: self.store.reader, self.name),
        ]
        self.server = HttpServer(config.Server(port=port, web_config_file=self.web), self.publisher, table)
        self.port = self.server.start()
        self.url = self.server.url.removesuffix("/")

    def close(self) -> None:
        self.server.stop()
        self.store.close()

    def checkup(self) -> list[dict[str, MessageLike]]:
        machine = RecordedHost(HOSTS / self.machine)
        return [finding._asdict() for finding in doctor.run(machine, config.Config())]

    def see(self, number: int) -> bool:
        self.seen.append(number)
        return True

    def now(self, language: str = "en") -> dict[str, Any]:
        if self.known is None:
            return status(None, translator(language))
        document = self.known(language)
        if language in self.verdict:
            document |= {"verdict": self.verdict[language], "level": self.verdict[language]["level"]}
        if self.ticking:
            self.again()
            at = datetime.fromtimestamp(self.clock.wall(), timezone.utc)
            document |= {"at": at.isoformat(timespec="milliseconds")}
        return document

    def publish(
        self, snapshot: Snapshot, observation: Observation, forecasts: Iterable[Forecast] = (), *, keep: bool = True
    ) -> None:
        """Show a moment, and keep it in the history."""
        snapshot = replace(snapshot, observation=observation, forecasts=tuple(forecasts))
        standing = [OpenIncident(i, False, None) for i in self.ledger.open.values()]
        recent, stress = self.said[:-11:-1], [run for _, run in self.store.reader.stress_runs()]
        lately = [row for row in self.said if snapshot.mono - row.mono <= NEWS_SECONDS]
        verdict = decide(snapshot.forecasts, standing, lately, blind=blindness(snapshot), lost=self.lost)
        latest = TickState(snapshot, verdict, standing, stress, running=self.running, recent=recent)
        self.known = lambda language: status(latest, translator(language))
        self.publisher.publish(snapshot)
        if keep:
            self.store.append(snapshot)

    def again(self) -> None:
        """Take the same sample once more, now."""
        latest = self.publisher.latest
        if latest is not None:
            self.publisher.publish(moved(latest, self.clock.wall(), self.clock.mono(), latest.sequence + 1))

    def say(self, transition: Transition) -> None:
        """Record a change of level."""
        self.said.append(transition)
        row = self.ledger.reconcile(transition)
        if row is not None:
            self.ledger.take(self.store.outbox.record(row, {}), row)

    def play(self, observations: Iterable[Observation], until: float, *, thin: int = 1) -> None:
        """Run the engine over a trace up to a moment, which becomes now."""
        engine = RiskEngine()
        seen = [o for o in observations if o.t <= until]
        base_wall, base_mono = self.clock.wall() - seen[-1].t, self.clock.mono() - seen[-1].t
        for number, observation in enumerate(seen):
            assessment = engine.observe(observation)
            snapshot = snapshot_of(observation, assessment.forecasts, base_wall, base_mono, number)
            for c in assessment.changes:
                self.say(replace(c, wall=snapshot.wall, mono=snapshot.mono, message=compose(c).headline))
            last = number == len(seen) - 1
            if last or number % thin == 0:
                self.store.append(snapshot)
            if last:
                self.publish(snapshot, observation, assessment.forecasts, keep=False)
        self.store.flush()

    def host(self, name: str, *, past_seconds: int = 900, judged_seconds: int = 0) -> None:
        """Show a recorded machine, as if it had been like that for a while; the engine may judge all of it."""
        self.machine = name
        monitor = Assessor(PATIENT, RecordedHost(HOSTS / name))
        try:
            # A tick waits for nobody; on a busy machine the driver's stand-in answers only a later one.
            for ticks in count(1):
                state, _ = monitor.tick()
                late = [r.name for r in state.reports if r.health == "late"]
                if ticks >= 4 and (not late or ticks >= MAX_TICKS):
                    break
                time.sleep(0.05 if ticks >= 4 else 0.0)
        finally:
            monitor.close()
        wall, mono = self.clock.wall(), self.clock.mono()
        for ago in range(past_seconds, -1, -5):
            now = moved(state, wall - ago, mono - ago, past_seconds - ago)
            self.store.append(now)
        self.store.flush()
        engine, forecasts = RiskEngine(), state.forecasts
        for second in range(judged_seconds):
            found = engine.observe(replace(state.observation, t=state.observation.t + second))
            forecasts = found.forecasts
            for c in found.changes:
                self.say(replace(c, wall=wall, mono=mono, message=compose(c).headline))
        self.publish(now, state.observation, forecasts, keep=False)


def moved(snapshot: Snapshot, wall: float, mono: float, sequence: int) -> Snapshot:
    """Return the same moment at another time."""
    shift = mono - snapshot.mono
    reports = tuple(replace(r, mono=r.mono + shift, fresh=True) for r in snapshot.reports)
    return Snapshot(wall, mono, sequence, reports, 0.0, 1.0)


def spec_named(name: str) -> MetricSpec:
    return catalogue()[name]


def readings_of(observation: Observation) -> Iterator[Reading]:
    """Return the sources' readings."""
    known = catalogue()
    if observation.ram:
        for field, line in _LINES.items():
            value = getattr(observation.ram, field)
            if value is not None:
                yield Reading(MEMINFO[line], value)
    if observation.swap:
        yield Reading(MEMINFO["SwapTotal"], observation.swap.total)
        yield Reading(MEMINFO["SwapFree"], observation.swap.free)
    for gpu in observation.gpus:
        labels = (str(gpu.index), gpu.uuid)
        yield Reading(known["gpu_up"], 1, labels)
        for field, name in _CARD.items():
            value: Number | None = getattr(gpu, field)
            if value is not None:
                yield Reading(known[name], value, labels)


def snapshot_of(
    observation: Observation, forecasts: Iterable[Forecast], base_wall: float, base_mono: float, number: int
) -> Snapshot:
    """Return the tick that would have led to an observation."""
    mono = base_mono + observation.t
    wall = base_wall + observation.t
    parts = {
        "memory": Sample(tuple(readings_of(replace(observation, gpus=())))),
        "gpu": Sample(tuple(readings_of(Observation(observation.t, gpus=observation.gpus))), gpus=observation.gpus),
        "processes": Sample(processes=observation.processes),
        "risk": Sample(tuple(risk_metrics.readings(forecasts))),
    }
    reports = [SourceReport(name, "ok", sample, mono, 0.0004, last_success_wall=wall) for name, sample in parts.items()]
    if not observation.gpus:
        reports[1] = SourceReport(
            "gpu", "absent", Sample(), mono, 0.0001, "no NVIDIA driver: libnvidia-ml.so.1 not found"
        )
    return Snapshot(wall, mono, number, tuple(reports), 0.0, 1.0)


def trace(name: str) -> Iterator[Observation]:
    return read_trace(TRACES / f"{name}.jsonl.gz")


def nights(stage: Stage, many: int = 30) -> None:
    """Record stress runs of as many nights: some that could not be, and lately one that found something."""
    gib, now = 1 << 30, stage.clock.wall()
    key = {"driver": "576.88", "torch": "2.13.0", "mode": "nightly", "wsl": "yes"}
    slow = StressFinding("bandwidth", FELL)
    for number in range(many):
        run = StressResult(now - 86400 * (many - number), "GPU-5070", 0, "RTX 5070 Ti", "skipped", key=key)
        if number % 9 == 4:
            stage.store.record_stress(replace(run, reason=say("the GPU does not answer")))
            continue
        bad, wave = number == many - 3, 1 + 0.004 * ((number * 7) % 5 - 2)
        values = {
            "usable_bytes": int(14.1 * gib * wave),
            "free_bytes": 15 * gib,
            "errors": 0,
            "duration_seconds": 9.2,
            "write_median": 800e9 * wave * (0.89 if bad else 1),
            "read_median": 760e9 * wave,
        }
        chunks = [
            {
                "index": n,
                "class": "dedicated",
                "bytes": 1 << 28,
                "write": (1 << 28) / (8e11 + (n % 5) * 1e9 - (3e11 if n > 50 else 0)),
                "change": (2 << 28) / 7.9e11,
                "read": (1 << 28) / 7.6e11,
            }
            for n in range(56)
        ]
        found = (slow,) if bad else ()
        verdict: StressVerdict = "findings" if bad else "passed"
        stage.store.record_stress(
            replace(run, verdict=verdict, findings=found, values=values, detail={"chunks": chunks})
        )


def past_incidents(stage: Stage) -> None:
    """Record what went wrong in the last days."""
    now, mono = stage.clock.wall(), stage.clock.mono()
    killed = {"who": "cc1plus (pid 20231)", "victim": "cc1plus", "pid": 20231, "size_bytes": 11 << 30}
    for days, resource, rule, level, facts in (
        (9.2, "daemon", "unclean_end", Level.WARNING, {"killed_wall": now - 86400 * 9.2}),
        (6.1, "gpu0", "vram_stress", Level.WARNING, {"text": FELL}),
        (3.4, "ram", "oom_kill", Level.CRITICAL, killed),
        (1.3, "disk:/", "read_only_disk", Level.WARNING, {}),
    ):
        began = now - 86400 * days
        for wall, old, new in ((began, Level.OK, level), (began + 1260, level, Level.OK)):
            row = Transition(wall, mono, resource, rule, old, new, facts=facts)
            stage.say(replace(row, message=compose(row).headline))


def year(database: Path, now: float, days: int = 365, minute_days: int = 60) -> None:
    """Fill a new database with hours of RAM and of a card's memory that breathe with the day, and minutes."""
    known = catalogue()
    first = [Reading(MEMINFO["MemAvailable"], 32 << 30), Reading(known["headroom_bytes"], 1 << 34, ("gpu0",))]
    with Store(database, host_name="stage") as store:
        report = SourceReport("memory", "ok", Sample(tuple(first)), 0.0, 0.0)
        store.append(Snapshot(now, 0.0, 0, (report,)))
        store.flush()
    engine = create_engine(f"sqlite:///{database}")
    with engine.begin() as connection:
        numbers = list(connection.execute(select(schema.series.c.id)).scalars())
        begin = int(now - 86400 * days) // 86400 * 86400
        last = int(now) // 900 * 900
        write_summaries(connection, schema.MINUTES, dict(levels(last - 86400 * minute_days, last, 60, numbers)))
        write_summaries(connection, schema.HOURS, dict(levels(begin, last // 3600 * 3600, 3600, numbers)))
    engine.dispose()


def breath(second: int, number: int) -> int:
    """Return bytes that rise and fall with the day and the week."""
    day, week = second % 86400 / 86400, second % 604800 / 604800
    return int((24 + 6 * math.sin(6.28 * day + number) + 4 * math.sin(6.28 * week)) * (1 << 30))


def levels(begin: int, end: int, step: int, numbers: list[int]) -> Iterator[tuple[tuple[int, int], Summary]]:
    for second in range(begin, end, step):
        for number in numbers:
            level = breath(second, number)
            yield (second, number), Summary(step, level - (1 << 28), level + (1 << 27), step * level, level)
