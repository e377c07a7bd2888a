"""An evening on made-up machines, for pictures and for queries that need hours.

``pc`` (WSL2 with an RTX 5070 Ti), on which a training fills VRAM and its data loaders leak RAM, and ``rack``
(bare Linux with two cards). Figures are invented, verdicts are not: they replace those of a recorded machine and
pass through the daemon's own risk engine and metrics; promtool hands them to Prometheus as if it had scraped them.
"""

from __future__ import annotations

import math
import random
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.grafana.leaking import Training
from tests.grafana.machines import CARDS, chunks
from tests.hosts.conftest import report
from tests.hosts.machines import HERE
from tests.stress.support import MIB, night
from tests.support.servers import program
from wslgpud.alerts import incidents
from wslgpud.app import systemd
from wslgpud.app.catalogue import catalogue
from wslgpud.config import Config
from wslgpud.host import RecordedHost
from wslgpud.metrics import Catalogue
from wslgpud.model import GpuSample, Level, Number, ProcessSample, Reading, Snapshot
from wslgpud.risk import risk_metrics
from wslgpud.risk.engine import RiskEngine
from wslgpud.sampling.observation import observation_of
from wslgpud.sampling.sampler import METRICS as TICK_METRICS
from wslgpud.sampling.sampler import SOURCES
from wslgpud.serve import publisher
from wslgpud.store import store_metrics
from wslgpud.stress import stress_metrics
from wslgpud.verdict import VerdictMetrics, decide

GIB = float(1 << 30)
#: seconds of a whole evening, of one sample, and of one scrape
EVENING, TICK, SCRAPE, NIGHTLY_SCRAPE = 3 * 3600, 5, 15, 600
NIGHTS = 30
PC, RACK = "pc:9655", "rack:9655"
Part = Iterable[tuple[str, Iterable[tuple[float, list[Reading]]]]]
Values = dict[tuple[str, tuple[str, ...]], Number]


_NOISE = random.Random(3)


def _of(host: str) -> Snapshot:
    sources = [source(RecordedHost(HERE / host), Config()) for source in SOURCES]
    try:
        return Snapshot(0.0, 0.0, 0, tuple(report(source) for source in sources))
    finally:
        for source in sources:
            source.close()


def _ramp(t: float, start: float, end: float) -> float:
    return min(1.0, max(0.0, (t - start) / (end - start)))


class Evening:
    """The invented history: a desktop; from 0:40 on a training; in the last half hour its data loaders leak."""

    def __init__(self, seed: int, *, leaks: bool, card_bytes: float, ram_bytes: float) -> None:
        self._random = random.Random(seed)
        self._leaks, self._card, self._ram = leaks, card_bytes, ram_bytes
        self.counters: dict[str, float] = {}

    def add(self, name: str, rate: float) -> float:
        """Return a counter that has grown at ``rate`` since the last tick."""
        self.counters[name] = self.counters.get(name, 0.0) + max(0.0, rate) * TICK
        return self.counters[name]

    def wave(self, period: float, t: float) -> float:
        return 0.5 + 0.5 * math.sin(2 * math.pi * t / period)

    def noise(self, width: float) -> float:
        return self._random.gauss(0, width)

    def at(self, t: float) -> Iterator[tuple[str, tuple[str, ...], float]]:
        trains = _ramp(t, 2400, 2460)
        leak = _ramp(t, EVENING - 1500, EVENING + 260) if self._leaks else 0.0
        building = _ramp(t, 900, 930) - _ramp(t, 1900, 1930)
        validating = trains * (t % 1800 > 1560)
        anon = 0.05 + 0.13 * trains + 0.25 * building * (0.6 + 0.4 * self.wave(240, t)) + 0.004 * self.noise(1)
        wanted = anon + 1.32 * leak
        in_ram = min(0.93 + 0.004 * self.noise(1), wanted)
        swapped = (wanted - in_ram) * self._ram
        yield "memory_available_bytes", (), self._ram * (1 - in_ram)
        yield "memory_anon_bytes", (), self._ram * in_ram * 0.96
        yield "memory_free_bytes", (), self._ram * max(0.01, 0.93 - in_ram)
        yield "swap_free_bytes", (), max(0.0, 20 * GIB - swapped)
        thrash = _ramp(in_ram, 0.88, 0.96) * leak
        yield "swap_in_bytes", (), self.add("in", thrash * 40e6 * abs(1 + self.noise(0.5)))
        yield "swap_out_bytes", (), self.add("out", thrash * 90e6 * abs(1 + self.noise(0.4)))
        stalled = min(0.5, 0.14 * thrash * abs(1 + self.noise(0.35)))
        for window in ("10s", "60s"):
            yield "pressure_stalled_ratio", ("memory", window), stalled
            yield "pressure_waiting_ratio", ("memory", window), min(1.0, 2.4 * stalled + 0.002)
        load = min(1.0, trains * (0.94 + 0.03 * self.noise(1)) * (0.35 if validating else 1)) * (1 - 0.35 * thrash)
        card = ("0", CARDS["wsl2-vram-full"])
        used = 1.3 + trains * (9.4 + 1.1 * _ramp(t, 2400, 5200) + 0.5 * validating) + 0.05 * self.noise(1)
        used = used * GIB * self._card / (15.92 * GIB)
        reserved = 0.32 * GIB
        yield "gpu_memory_used_bytes", card, used
        yield "gpu_memory_reserved_bytes", card, reserved
        yield "gpu_memory_free_bytes", card, max(0.0, self._card - used - reserved)
        yield "gpu_utilization_ratio", card, max(0.02, load) if trains else 0.03 + 0.02 * self.wave(500, t)
        yield "gpu_memory_utilization_ratio", card, max(0.01, 0.55 * load)
        watts = 28 + 262 * load + 4 * self.noise(1)
        self.counters["heat"] = heat = self.counters.get("heat", 41) * 0.985 + (41 + 33 * load) * 0.015
        yield "gpu_power_watts", card, max(15, min(300, watts))
        yield "gpu_temperature_celsius", card, round(heat)
        for clock, idle, busy in (("graphics", 0.3e9, 2.72e9), ("sm", 0.3e9, 2.72e9), ("memory", 0.8e9, 14e9)):
            yield "gpu_clock_hertz", (clock, *card), idle + (busy - idle) * (load > 0.2) + 2e7 * self.noise(1)
        yield "gpu_fan_speed_ratio", card, 0.3 + 0.35 * _ramp(heat, 50, 80)
        yield "gpu_performance_state", card, 1 if load > 0.2 else 8
        yield "gpu_throttle_reason", (*card, "sw_power_cap"), float(watts > 286)
        yield "gpu_throttle_reason", (*card, "gpu_idle"), float(load < 0.05)
        busy = {
            "user": 0.05 + 0.2 * trains + 0.7 * building,
            "system": 0.02 + 0.05 * trains + 0.05 * building,
            "iowait": 0.004 + 0.2 * thrash,
        }
        busy["idle"] = max(0.0, 1 - sum(busy.values()))
        for mode, share in busy.items():
            yield "cpu_seconds", (mode,), self.add(mode, 24 * abs(share + 0.01 * self.noise(1)))
        yield ("program_resident_bytes", ("python",), self._ram * (0.01 + 0.11 * trains + 0.85 * min(leak, 0.8)))
        yield (
            "program_resident_bytes",
            ("cc1plus",),
            self._ram * max(0.0, anon - 0.09 - 0.13 * trains) * (building > 0),
        )
        yield "program_resident_bytes", ("chrome",), 2.2 * GIB + 2e7 * self.noise(1)
        yield "program_resident_bytes", ("node",), 1.1 * GIB + 1e7 * self.noise(1)
        yield "uptime_seconds", (), 3600 * 26 + t

    def windows(self, values: Values, catalogue_: Catalogue) -> list[Reading]:
        """Return the host's side: what its virtual machine holds grows at once and shrinks late."""
        touched = self._ram - values["memory_available_bytes", ()] + 2.5 * GIB
        held = self.counters["held"] = max(touched, self.counters.get("held", 0.0) - 0.6e6 * TICK)
        card = values["gpu_memory_used_bytes", ("0", CARDS["wsl2-vram-full"])]
        adapter = ("NVIDIA GeForce RTX 5070 Ti",)
        found: list[tuple[str, float, tuple[str, ...]]] = [
            ("windows_memory_total_bytes", 63.8 * GIB, ()),
            ("windows_memory_available_bytes", 54 * GIB - held, ()),
            ("windows_memory_committed_bytes", 19 * GIB + held, ()),
            ("windows_memory_commit_limit_bytes", 95 * GIB, ()),
            ("windows_memory_pool_nonpaged_bytes", 1.2 * GIB, ()),
            ("windows_vm_resident_bytes", held, ()),
            ("windows_vm_unreturned_bytes", held - touched, ()),
            ("windows_gpu_dedicated_size_bytes", 15.73 * GIB, adapter),
            ("windows_gpu_dedicated_bytes", card, adapter),
            ("windows_gpu_shared_bytes", 0.41 * GIB + 5e6 * self.noise(1), adapter),
            ("windows_gpu_committed_bytes", card + 0.5 * GIB, adapter),
            ("windows_gpu_program_bytes", 0.9 * GIB + 1e7 * self.noise(1), (*adapter, "dwm.exe")),
            ("windows_gpu_program_bytes", 0.4 * GIB + 4e7 * self.noise(1), (*adapter, "chrome.exe")),
        ]
        return [Reading(catalogue_[name], value, labels) for name, value, labels in found]


def _with(snapshot: Snapshot, values: Values, t: float, wall: float) -> Snapshot:
    reports = []
    for source in snapshot.reports:
        sample = source.sample
        seen = {(r.spec.name, r.labels) for r in sample.readings}
        readings = [r._replace(value=values.get((r.spec.name, r.labels), r.value)) for r in sample.readings]
        if source.name == "processes":
            program_spec = catalogue()["program_resident_bytes"]
            readings = [r for r in readings if r.spec != program_spec] + [
                Reading(program_spec, v, k[1]) for k, v in values.items() if k[0] == program_spec.name and k not in seen
            ]
            names = {k[1][0]: v for k, v in values.items() if k[0] == program_spec.name}
            found = [ProcessSample(100 + i, 7, n, int(v), 0) for i, (n, v) in enumerate(names.items())]
            sample = replace(sample, processes=tuple(sorted(found, key=lambda p: -p.rss_bytes)))
        if sample.gpus:
            sample = replace(sample, gpus=tuple(_card(gpu, values) for gpu in sample.gpus))
        sample = replace(sample, readings=tuple(readings))
        fine = source.health == "ok"
        reports.append(
            replace(
                source,
                sample=sample,
                mono=t,
                last_success_wall=wall if fine else None,
                duration_seconds=_took(source.name),
                failures_total=0,
            )
        )
    return replace(snapshot, wall=wall, mono=t, reports=tuple(reports))


def _took(source: str) -> float:
    usual = 0.00006 * (1 + sum(source.encode()) % 7) + 0.0006 * (source == "processes")
    return usual * abs(1 + _NOISE.gauss(0, 0.12))


def _card(gpu: GpuSample, values: Values) -> GpuSample:
    def value(name: str) -> int | None:
        found = values.get((name, (str(gpu.index), gpu.uuid)))
        return None if found is None else int(found)

    used = value("gpu_memory_used_bytes")
    if used is None:
        return gpu
    return replace(
        gpu,
        used_bytes=used,
        free_bytes=value("gpu_memory_free_bytes"),
        reserved_bytes=value("gpu_memory_reserved_bytes"),
    )


def evening(
    host: str, seed: int, end: float, *, leaks: bool, last: int = EVENING
) -> Iterator[tuple[float, list[Reading]]]:
    """Yield (wall, readings) of each scrape."""
    base = _of(host)
    total = base.value(catalogue()["memory_total_bytes"])
    invented = Evening(seed, leaks=leaks, card_bytes=15.92 * GIB, ram_bytes=float(total or 0))
    metrics = catalogue()
    engine, tick = RiskEngine(), {spec.name: spec for spec in TICK_METRICS}
    own = {spec.name: spec for spec in (*store_metrics.METRICS, *publisher.METRICS)}
    taken, verdict, training = 0.0, VerdictMetrics(), Training(2460, CARDS[host])
    if leaks:  # an allocation failed there on an earlier evening
        engine.recall(CARDS[host], {"ceiling_bytes": int(14.6 * GIB), "ceiling": "seen"}, 86400.0)
    for t in range(0, last + 1, TICK):
        wall = end - EVENING + t
        values = {(name, labels): value for name, labels, value in invented.at(t)}
        snapshot = _with(base, values, float(t), wall)
        forecasts = engine.observe(observation_of(snapshot)).forecasts
        verdict.observe(decide(forecasts, ()))
        growing = max(int(f.level) for f in forecasts) >= Level.WARNING
        interval = 0.1 if growing else 1.0
        taken += TICK / interval
        if t % SCRAPE:
            continue
        gpu_own = {spec.name: spec for source in SOURCES if source.name == "gpu" for spec in source.metrics}
        windows = invented.windows(values, metrics) if leaks else []
        yield (
            wall,
            [
                *(
                    Reading(gpu_own[f"gpu_probe_{what}"], count)
                    for what, count in (("starts", 1), ("hangs", 0), ("crashes", 0))
                ),
                Reading(gpu_own["gpu_nvml_errors"], 6, ("NotSupported",)),
                Reading(gpu_own["gpu_library"], 1, ("/usr/lib/wsl/lib/libnvidia-ml.so.1", "13.591.44")),
                *snapshot.readings(),
                *windows,
                *(training.tells(t, snapshot, forecasts) if leaks else ()),
                *risk_metrics.readings(forecasts),
                *verdict.readings(),
                *publisher.source_readings(snapshot),
                publisher.build_reading(),
                Reading(tick["tick_interval_seconds"], interval, ()),
                Reading(tick["tick_lateness_seconds"], 0.002, ()),
                *(
                    reading
                    for f in forecasts
                    if f.level >= Level.WARNING
                    for reading in (
                        Reading(incidents.LEVEL, int(f.level), ("memory_exhaustion", f.resource)),
                        Reading(incidents.OPENED, snapshot.wall - 60, ("memory_exhaustion", f.resource)),
                    )
                ),
                Reading(own["store_file_bytes"], 181e6 + 900 * t, ()),
                Reading(own["store_wal_bytes"], 4.1e6, ()),
                Reading(own["store_free_bytes"], 9e6, ()),
                Reading(own["store_queue_ticks"], t % 11, ()),
                Reading(own["store_failing"], 0, ()),
                Reading(own["store_commit_age_seconds"], 10 * _NOISE.random(), ()),
                Reading(own["store_commit_duration_seconds"], 0.004 * abs(1 + _NOISE.gauss(0, 0.2)), ()),
                Reading(own["store_last_check_timestamp_seconds"], end - 8.3 * 3600, ()),
                *(
                    Reading(own[name], 0, ())
                    for name in (
                        "store_check_findings",
                        "store_set_aside",
                        "store_dropped_ticks",
                        "store_dropped_records",
                        "store_write_errors",
                        "store_rejected_values",
                    )
                ),
                Reading(own["store_written_bytes"], 2600 * t, ()),
                Reading(own["store_purged_rows"], 18 * t, ()),
                Reading(systemd.OOM_SCORE_ADJUST, -900, ()),
                Reading(own["http_connections"], 2, ()),
                Reading(own["exposition_duration_seconds"], 0.0021 * abs(1 + _NOISE.gauss(0, 0.1)), ()),
                Reading(metrics["doctor_findings"], 0, ("problem",)),
                Reading(own["ticks"], taken, ()),
                Reading(own["http_requests"], t / SCRAPE, ("/metrics", "200")),
                Reading(own["http_requests"], t / 40, ("/api/v1/status", "200")),
                Reading(incidents.DELIVERIES, 3, ("ntfy", "sent")),
                Reading(incidents.DELIVERIES, 3, ("windows_toast", "sent")),
                *(
                    Reading(spec, 0, ("yes",) if spec.labels else ())
                    for spec in incidents.METRICS
                    if spec.name in ("exhaustions", "false_alarms")
                ),
            ],
        )


def nights(uuid: str, end: float) -> Iterator[tuple[float, list[Reading]]]:
    """Yield a month of stress runs, every ten minutes: a driver that costs 4 %, and a region that gets slow."""
    runs, chance = [], random.Random(7)
    for number in range(NIGHTS):
        new = number >= 17
        factor = (0.96 if new else 1.0) * (1 + chance.gauss(0, 0.002))
        foreign, spilled = int((700 + 500 * chance.random()) * MIB), 512 * MIB if number in (22, 23) else 0
        verdict = "skipped" if number in (5, 12) else "findings" if spilled else "passed"
        run = night(
            number,
            uuid=uuid,
            verdict=verdict,
            driver="591.44" if new else "581.29",
            write_median=842e9 * factor,
            change_median=805e9 * factor,
            read_median=861e9 * factor,
            write_min=801e9 * factor,
            read_min=(74e9 if spilled else 812e9 * factor),
            total_bytes=16303 * MIB,
            reserved_bytes=326 * MIB,
            foreign_bytes=foreign,
            context_bytes=410 * MIB,
            spilled_bytes=spilled,
            free_bytes=15100 * MIB - foreign,
            verified_bytes=15080 * MIB - foreign,
            usable_bytes=14600 * MIB - foreign - spilled,
            spec_bytes=16384 * MIB,
            peak_bandwidth=896e9,
            temperature_max_celsius=round(58 + 3 * chance.gauss(0, 1)),
            slowed_ratio=0.0,
        )
        slow = range(48, 56) if spilled else range(0)
        rows = [{**row, "read": row["read"] / (1.13 * factor)} for row in chunks(slow)]
        begun = end - (NIGHTS - number) * 86400 + 3 * 3600 + chance.random() * 1200
        runs.append(replace(run, wall=begun, key={**run.key, "cuda": "13.0"}, detail={"chunks": rows}))
    for wall in range(int(runs[0].wall), int(end) + 1, NIGHTLY_SCRAPE):
        yield float(wall), list(stress_metrics.readings([run for run in runs if run.wall <= wall]))


def openmetrics(parts: Part) -> str:
    """Return what promtool imports; ``up`` and the process' own figures are added to each machine's scrapes."""
    lines: dict[str, dict[tuple[str, float], str]] = {}
    for instance, scrapes in parts:
        where = {"job": "wslgpud", "instance": instance}
        for wall, readings in scrapes:
            chosen = [(r.spec.exposed_name, dict(zip(r.spec.labels, r.labels, strict=True)), r.value) for r in readings]
            if any(r.spec == publisher.TICK_TIMESTAMP for r in readings):
                chosen += [(name, {}, value) for name, value in _process(wall).items()]
            for name, labels, value in chosen:
                shown = ",".join(f'{k}="{v}"' for k, v in sorted((where | labels).items()) if v)
                # As in a scrape: what two sources read is there once, with the last value.
                series = f"{name}{{{shown}}}"
                lines.setdefault(name, {})[series, wall] = f"{series} {float(value)} {wall:.0f}"
    return "\n".join(line for found in lines.values() for line in found.values()) + "\n# EOF\n"


def _process(wall: float) -> dict[str, float]:
    return {
        "up": 1,
        "process_resident_memory_bytes": 43e6 + 4e4 * abs(_NOISE.gauss(0, 1)),
        "process_cpu_seconds_total": (wall % 1e6) * 0.0041 + 0.008 * _NOISE.random(),
        "process_start_time_seconds": 1.7e9,
    }


def backfill_part(folder: Path, part: Part) -> None:
    """Write one block for a Prometheus whose data lies in ``folder``/tsdb."""
    file = folder / "history.om"
    file.write_text(openmetrics(part))
    # One block: promtool reads the whole file again for each.
    command = [
        program("prometheus", "promtool"),
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        "--max-block-duration=1000h",
        "--quiet",
        str(file),
        str(folder / "tsdb"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    file.unlink()


def backfill(folder: Path, end: float) -> None:
    """Write all: the evening, and in blocks of their own the nights before it."""
    pc, rack = evening("wsl2-vram-full", 1, end, leaks=True), evening("two-gpus", 2, end, leaks=False)
    backfill_part(folder, [(PC, pc), (RACK, rack)])
    backfill_part(folder, [(PC, nights(CARDS["wsl2-vram-full"], end))])
