"""Each kind of trouble opens at its threshold, after its time, and closes when it is really over."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.alerts.ticks import START, oom_kill, tick
from wslgpud.alerts import rules
from wslgpud.alerts.messages import compose
from wslgpud.alerts.rules import RULES, RuleEngine
from wslgpud.model import (
    EMPTY,
    Event,
    Forecast,
    GpuSample,
    Health,
    Level,
    ProcessSample,
    Reading,
    Sample,
    Snapshot,
    SourceReport,
    Transition,
)
from wslgpud.risk import risk_metrics
from wslgpud.sources import cgroups, disk, gpu, memory, windows

STALLED = ("memory", "10s")
GIB = 1 << 30
CARD = (GpuSample(0, "GPU-1", "RTX"),)
NAMESAKE = GpuSample(0, "GPU-1", "NVIDIA RTX")


def thrash(t: float, ratio: float) -> Snapshot:
    return tick(t, Reading(memory.STALLED_RATIO, ratio, STALLED))


def levels(engine: RuleEngine, snapshots: list[Snapshot]) -> list[tuple[float, str, str]]:
    """Run; return (time, rule, new level) of each change."""
    return [(s.mono, c.rule, c.new.label) for s in snapshots for c in engine.observe(s)]


def test_a_trembling_value_does_not_make_a_level_flap() -> None:
    values = [0.3] * 5 + [0.0] + [0.3] * 12 + [0.15, 0.25] * 30 + [0.05] * 32

    assert levels(RuleEngine(), [thrash(t, v) for t, v in enumerate(values)]) == [
        (16.0, "swap_thrash", "warning"),
        (108.0, "swap_thrash", "ok"),
    ]


def test_it_escalates_and_the_unknown_neither_opens_nor_closes() -> None:
    engine = RuleEngine()
    found = levels(engine, [thrash(t, 0.8) for t in range(25)])

    assert [f[2] for f in found] == ["warning", "critical"]
    assert levels(engine, [tick(float(t)) for t in range(25, 600, 5)]) == []


def test_without_psi_only_swap_in_both_directions_is_thrashing() -> None:
    def swapping(t: int, into: int, out: int) -> Snapshot:
        return tick(float(t), Reading(memory.SWAP_IN, t * into), Reading(memory.SWAP_OUT, t * out))

    fast = 50 << 20
    assert levels(RuleEngine(), [swapping(t, 0, fast) for t in range(60)]) == []
    assert levels(RuleEngine(), [swapping(t, fast, fast) for t in range(15)])[0][1:] == ("swap_thrash", "warning")


def test_an_oom_kill_is_reported_at_once_and_so_is_the_next() -> None:
    engine = RuleEngine()
    first = engine.observe(tick(1, events=(oom_kill("cc1plus", 41),)))
    second = engine.observe(tick(2, events=(oom_kill("ld", 42),)))

    assert [(c.rule, c.resource, c.new, c.facts["victim"]) for c in first + second] == [
        ("oom_kill", "ram", Level.CRITICAL, "cc1plus"),
        ("oom_kill", "ram", Level.CRITICAL, "ld"),
    ]
    assert levels(engine, [tick(t) for t in range(3, 700)]) == [(33, "oom_kill", "ok")], "it is over"


def test_kills_within_half_a_minute_are_one_incident() -> None:
    engine = RuleEngine()
    kills = [tick(t, events=(oom_kill("cc1plus", 41 + t),) if t % 25 == 0 else ()) for t in range(1, 200)]

    assert [level for _, _, level in levels(engine, kills) if level == "ok"] == []
    assert [level for _, _, level in levels(engine, [tick(t) for t in range(200, 240)])] == ["ok"]


@pytest.mark.parametrize(("cgroup", "resource"), [("/build", "cgroup:/build"), ("/wsl-user", "ram"), ("", "ram")])
def test_a_kill_within_a_limit_names_its_group(cgroup: str, resource: str) -> None:
    (change,) = RuleEngine().observe(tick(1, events=(oom_kill(cgroup=cgroup),)))

    assert change.resource == resource


def test_kills_before_the_start_count_if_no_daemon_saw_them() -> None:
    old = oom_kill(past=1, wall=START - 50)

    assert RuleEngine().observe(tick(1, events=(old,))) == []
    assert RuleEngine(since_wall=START - 10).observe(tick(1, events=(old,))) == []
    assert len(RuleEngine(since_wall=START - 100).observe(tick(1, events=(old,)))) == 1


def test_a_victim_is_named_by_the_script_that_it_ran() -> None:
    def told(victim: str, *seen: ProcessSample) -> str:
        engine = RuleEngine()
        engine.observe(tick(1, processes=seen))
        engine.observe(tick(2, processes=(ProcessSample(9, 1, "other", 0, 0),)))
        (change,) = engine.observe(tick(3, events=(oom_kill(victim, 8932),)))
        row = Transition(START, 1, change.resource, change.rule, change.old, change.new, facts=change.facts)
        return str(compose(row).headline)

    script = ProcessSample(8932, 1, "python3", GIB, 0, command="python3 train.py")
    assert told("python3", script) == "Killed for lack of memory: python3 train.py (pid 8932), 5.0 GiB"
    assert told("python3") == "Killed for lack of memory: python3 (pid 8932), 5.0 GiB"
    assert told("cc1plus", script) == "Killed for lack of memory: cc1plus (pid 8932), 5.0 GiB"


def test_kills_at_the_same_moment_are_one_alert_with_all_victims() -> None:
    large = oom_kill("python3", 7)
    small = [
        large._replace(fields={**large.fields, "victim": "cc1plus", "pid": pid, "size_bytes": 9}) for pid in (8, 9)
    ]

    (change,) = RuleEngine().observe(tick(1, events=(large, *small)))

    text = compose(change)
    assert str(text.headline) == "Killed for lack of memory: python3 (pid 7), 5.0 GiB, and 2 more"
    assert str(text.evidence[0]).endswith("RAM was used up. Killed as well: 2 x cc1plus.")


def test_kills_in_many_groups_while_it_was_off_are_one_alert() -> None:
    missed = [oom_kill("cc1plus", n, cgroup=f"/build-{n}", past=1) for n in range(12)]
    last = oom_kill("python3", 50, cgroup="/train", past=1)
    machine, now = oom_kill("chrome", 51, past=1, wall=START - 30_000), oom_kill("ld", 52, cgroup="/link")
    last_night = datetime.fromtimestamp(START - 30_000).astimezone()

    changes = RuleEngine(since_wall=0).observe(tick(1, events=(*missed, machine, last, now)))

    told = {c.resource: compose(c) for c in changes}
    assert {resource: str(text.headline) for resource, text in told.items()} == {
        "cgroup:/train": "13 programs killed for lack of memory while wslgpud did not run; last: python3",
        "ram": f"Killed for lack of memory: chrome (pid 51), 5.0 GiB, at {last_night:%Y-%m-%d %H:%M:%S}",
        "cgroup:/link": "Killed for lack of memory: ld (pid 52), 5.0 GiB",
    }
    (why,) = told["cgroup:/train"].evidence
    assert str(why) == "Each hit the limit of its cgroup: 12 x cc1plus, 1 x python3."


def test_where_the_kernel_log_cannot_be_read_the_counter_tells() -> None:
    engine = RuleEngine()
    engine.observe(tick(1, Reading(memory.OOM_KILLS, 3), kernel_log="failed"))

    (change,) = engine.observe(tick(2, Reading(memory.OOM_KILLS, 4), kernel_log="failed"))

    assert (change.rule, change.resource, "victim" in change.facts) == ("oom_kill", "ram", False)


def test_kills_in_three_groups_while_it_was_off_are_three_alerts() -> None:
    missed = [oom_kill("cc1plus", n, cgroup=f"/build-{n % 3}", past=1) for n in range(4)]

    changes = RuleEngine(since_wall=0).observe(tick(1, events=tuple(missed)))

    assert [(c.resource, c.facts.get("kills")) for c in changes] == [
        ("cgroup:/build-0", 2),
        ("cgroup:/build-1", None),
        ("cgroup:/build-2", None),
    ]


@pytest.mark.parametrize(("groups", "alerts"), [(5, 5), (6, 1)])
def test_up_to_five_groups_with_kills_are_reported_one_by_one(groups: int, alerts: int) -> None:
    missed = [oom_kill("cc1plus", n, cgroup=f"/build-{n}", past=1) for n in range(groups)]

    assert len(RuleEngine(since_wall=0).observe(tick(1, events=tuple(missed)))) == alerts


def counted(machine: int, **groups: int) -> list[Reading]:
    """Return the kernel's counts of kills, of the machine and of groups that hit their limit at each."""
    found = [Reading(memory.OOM_KILLS, machine)]
    for name, kills in groups.items():
        path = ("/" + name.replace("_", "/"),)
        found += [Reading(cgroups.OOM_KILLS, kills, path), Reading(cgroups.LIMIT_HITS, kills, path)]
    return found


def kills(*looks: list[Reading]) -> list[tuple[float, str]]:
    """Return when and where kills were told of, without the kernel's log."""
    engine, told = RuleEngine(), []
    for t, readings in enumerate(looks):
        found = engine.observe(tick(t, *readings, kernel_log="absent"))
        told += [(t, c.resource) for c in found if c.rule == "oom_kill"]
    return told


def test_without_the_kernel_log_each_kill_belongs_to_its_group() -> None:
    calm, three = counted(0, a=0, b=0, c=0), counted(3, a=1, b=1, c=1)

    assert kills(calm, three, three) == [(1, f"cgroup:/{name}") for name in "abc"]


def test_a_kill_in_a_group_is_not_its_parents_too() -> None:
    assert kills(counted(0, a=0, a_b=0), counted(1, a=1, a_b=1)) == [(1, "cgroup:/a/b")]


@pytest.mark.parametrize(
    ("between", "when"), [(counted(1, a=0), 2), (counted(0, a=1), 1)], ids=["machine first", "group first"]
)
def test_counters_read_one_after_the_other_report_one_kill_once(between: list[Reading], when: int) -> None:
    after = counted(1, a=1)

    assert kills(counted(0, a=0), between, after, after, after) == [(when, "cgroup:/a")]


def test_a_kill_that_no_group_claims_is_the_machines() -> None:
    calm, after = counted(0, a=0), counted(1, a=0)

    assert kills(calm, after, after, after) == [(2, "ram")]


def test_without_the_kernel_log_the_victim_is_marked_as_inferred() -> None:
    gib = 1 << 30
    train = ProcessSample(8932, 1, "python3", 3 * gib, 0, command="python3 train.py", cgroup="/a")
    other = ProcessSample(9, 1, "chrome", 4 * gib, 0, cgroup="/b")
    engine = RuleEngine()

    def look(t: float, readings: list[Reading], *running: ProcessSample) -> list[Transition]:
        used = Reading(cgroups.CURRENT, sum(p.rss_bytes for p in running if p.cgroup == "/a"), ("/a",))
        seen = tick(t, *readings, used, kernel_log="absent")
        seen = replace(seen, reports=(*seen.reports, processes(t, *running)))
        return engine.observe(seen, forecasts=[Forecast("cgroup:/a", Level.INFO, 0, gib, who_pid=8932)])

    assert look(1, counted(0, a=0), train, other) == []
    assert look(2, counted(1, a=1), train, other) == [], "the list of processes is older than the kill"
    (change,) = look(5, counted(1, a=1))
    text = compose(Transition(START, 1, change.resource, change.rule, change.old, change.new, "", facts=change.facts))

    assert str(text.headline) == "Killed for lack of memory: probably python3 train.py (pid 8932), 3.0 GiB"
    assert "who" not in change.facts


def processes(t: float, *running: ProcessSample) -> SourceReport:
    return SourceReport("processes", "ok", Sample(processes=running), t, 0.0)


def test_a_kill_without_a_known_victim_is_reported_after_seconds() -> None:
    engine, told = RuleEngine(), []
    for t in range(20):
        seen = tick(t, *counted(int(t > 3), a=int(t > 3)), kernel_log="absent")
        lives = processes(t, ProcessSample(7, 1, "python3", 1 << 30, 0))
        seen = replace(seen, reports=(*seen.reports, lives))
        told += [(t, "likely" in c.facts) for c in engine.observe(seen) if c.rule == "oom_kill"]

    assert told == [(13, False)]


def test_where_the_log_leaves_out_the_group_its_counter_tells_it() -> None:
    event = oom_kill(cgroup="/a")
    unnamed = event._replace(fields={**event.fields, "cgroup": ""})
    engine = RuleEngine()
    engine.observe(tick(1, *counted(0, a=0, b=0)))

    (change,) = engine.observe(tick(2, *counted(1, a=1, b=0), events=(unnamed,)))

    assert change.resource == "cgroup:/a"


def test_a_victim_is_called_as_people_know_it() -> None:
    known = processes(1, ProcessSample(7, 1, "python3", 1 << 30, 0, command="/usr/bin/python3 -u train.py"))
    seen = tick(1, events=(oom_kill("python3", 7),))

    (change,) = RuleEngine().observe(replace(seen, reports=(*seen.reports, known)))

    assert change.facts["who"] == "python3 train.py (pid 7)"


def test_a_kill_missed_by_one_tick_is_reported_by_the_next() -> None:
    engine = RuleEngine()
    counts = [(Reading(memory.OOM_KILLS, 3),), (), (), (Reading(memory.OOM_KILLS, 4),)]

    found = levels(engine, [tick(t, *seen, kernel_log="absent") for t, seen in enumerate(counts)])

    assert found == [(3, "oom_kill", "critical")]


def test_a_late_kernel_log_is_waited_for_as_it_knows_the_victim() -> None:
    engine = RuleEngine()
    engine.observe(tick(1, Reading(memory.OOM_KILLS, 3), kernel_log="late"))

    assert engine.observe(tick(2, Reading(memory.OOM_KILLS, 4), kernel_log="late")) == []
    (change,) = engine.observe(tick(3, Reading(memory.OOM_KILLS, 4), events=(oom_kill("cc1plus"),)))
    assert change.facts["victim"] == "cc1plus"


def test_a_residency_failure_belongs_to_the_only_card() -> None:
    def line(function: str, error: str) -> Event:
        return Event("dxg_error", START, "misc dxg", {"function": function, "error": error})

    (change,) = RuleEngine().observe(tick(1, events=(line("dxgkio_make_resident", "ENOMEM"),), gpus=CARD))

    assert (change.rule, change.resource) == ("vram_residency_failed", "gpu0")
    assert RuleEngine().observe(tick(1, events=(line("dxgvmb_send_create_process", "EOVERFLOW"),))) == []


def test_allocations_refused_by_windows_are_always_reported() -> None:
    def line(function: str, error: str) -> Event:
        return Event("dxg_error", START, "misc dxg", {"function": function, "error": error})

    for error in ("EOVERFLOW", "ENOMEM"):
        (change,) = RuleEngine().observe(tick(1, events=(line("dxgkio_create_allocation", error),), gpus=CARD))
        assert (change.rule, change.resource, change.new) == ("gpu_allocation_refused", "gpu", Level.WARNING)
    assert RuleEngine().observe(tick(1, events=(line("dxgkio_create_allocation", "EINVAL"),))) == []


def test_a_failing_disk_is_one_incident_and_critical() -> None:
    def line(device: str, text: str) -> Event:
        return Event("disk_error", START, text, {"device": device})

    engine = RuleEngine()
    (change,) = engine.observe(tick(1, events=(line("hv_storvsc", "hv_storvsc cmd 0x28"), line("sdc", "I/O error"))))
    assert (change.rule, change.resource, change.new) == ("disk_failing", "machine", Level.CRITICAL)
    assert change.facts == {"text": "I/O error", "device": "sdc"}
    (bridge,) = RuleEngine().observe(tick(1, events=(line("hv_storvsc", "hv_storvsc cmd 0x28"),)))
    assert bridge.facts == {"text": "hv_storvsc cmd 0x28"}


def test_who_an_oom_daemon_killed_is_told_with_its_reason() -> None:
    fields = {"daemon": "earlyoom", "victim": "python3", "reason": "oom_score 1010, VmRSS 9021 MiB", "pid": 3153}
    (change,) = RuleEngine().observe(tick(1, events=(Event("oom_daemon_kill", START, "", fields),)))

    assert (change.rule, change.resource, change.new) == ("oom_daemon_kill", "ram", Level.CRITICAL)
    assert change.facts == fields


def test_that_no_new_session_can_begin_is_told() -> None:
    (change,) = RuleEngine().observe(tick(1, events=(Event("vmbus_starved", START, "kworker", {"order": 7}),)))

    assert (change.rule, change.resource, change.facts["order"]) == ("sessions_blocked", "machine", 7)


def test_an_ill_card_is_told_and_a_programs_mistake_is_not() -> None:
    def xid(number: str) -> Snapshot:
        return tick(1, events=(Event("nvidia_xid", START, "NVRM", {"xid": number, "device": "0000:01:00"}),))

    assert [c.rule for c in RuleEngine().observe(xid("79"))] == ["gpu_error"]
    assert RuleEngine().observe(xid("31")) == []


def test_a_lost_card_and_a_silent_driver() -> None:
    engine = RuleEngine()
    up, down = (Reading(gpu.UP, v, ("0", "GPU-1")) for v in (1, 0))
    lost = [tick(0, up, gpus=CARD, gpu="ok"), *(tick(t, down, gpu="ok") for t in range(1, 8))]
    silent = [tick(t, gpu="absent") for t in range(8, 200)]

    assert levels(engine, lost) == [(6.0, "gpu_lost", "critical")]
    assert levels(engine, silent) == [(188.0, "gpu_driver_gone", "critical")]


def test_a_lost_card_is_not_back_because_another_has_its_number() -> None:
    engine = RuleEngine()
    up, down = (Reading(gpu.UP, v, ("0", "GPU-1")) for v in (1, 0))
    second, moved = (Reading(gpu.UP, 1, (number, "GPU-2")) for number in ("1", "0"))
    lost = [tick(0, up, second), *(tick(t, down, second) for t in range(1, 8))]

    assert levels(engine, lost) == [(6.0, "gpu_lost", "critical")]
    assert levels(engine, [tick(t, down, moved) for t in range(8, 60)]) == []


def test_a_machine_that_never_had_a_card_misses_none() -> None:
    assert levels(RuleEngine(), [tick(t, gpu="failed") for t in range(300)]) == []


def test_heat_for_a_minute_is_told_and_a_power_cap_never() -> None:
    def throttled(t: int, reason: str) -> Snapshot:
        return tick(t, Reading(gpu.THROTTLED, 1, ("0", "GPU-1", reason)))

    hot = levels(RuleEngine(), [throttled(t, "sw_thermal_slowdown") for t in range(70)])

    assert hot == [(60.0, "gpu_throttled", "warning")]
    assert levels(RuleEngine(), [throttled(t, "sw_power_cap") for t in range(300)]) == []


def test_every_reason_that_counts_is_one_that_the_driver_gives() -> None:
    from wslgpud.alerts.measures import HARMFUL_REASONS

    assert set(gpu.THROTTLE_REASONS) > HARMFUL_REASONS


def spilling(t: float, used: float, shared: float, *, name: str = "NVIDIA RTX") -> Snapshot:
    """A card of 16 GiB that only Windows sees, in GiB."""
    found = ((windows.GPU_SIZE, 15.7), (windows.GPU_DEDICATED, used), (windows.GPU_SHARED, shared))
    return tick(t, *(Reading(spec, int(value * GIB), (name,)) for spec, value in found))


def test_growing_shared_memory_of_a_full_card_is_a_spill() -> None:
    engine = RuleEngine()
    calm = [spilling(t, 12, 1.5) for t in range(10)]
    full = [spilling(t, 15.5, 1.5 + 0.1 * (t - 10)) for t in range(10, 120)]
    found = levels(engine, calm + full)

    assert [(rule, level) for _, rule, level in found] == [("vram_spill", "warning"), ("vram_spill", "critical")]
    assert 30 <= found[0][0] <= 40
    (over,) = levels(engine, [spilling(t, 9, 1.0) for t in range(120, 200)])
    assert (over[1], over[2]) == ("vram_spill", "ok")


@pytest.mark.parametrize(
    "snapshots",
    [
        [spilling(t, 12, 0.1 * t) for t in range(200)],  # pinned buffers, while the card has room
        [spilling(t, 15.5, 3.0) for t in range(200)],  # full, and what is shared stays as it is
        [spilling(t, 15.5, 0.1 * t, name="Intel(R) UHD Graphics") for t in range(200)],
        [tick(t, Reading(windows.GPU_SHARED, t * GIB, ("NVIDIA RTX",))) for t in range(200)],
        [
            replace(seen, reports=(*seen.reports, *tick(t, gpus=(NAMESAKE,)).reports))
            for t in range(200)
            for seen in [spilling(t, 15.5, 0.1 * t)]
        ],
    ],
    ids=["room", "steady", "integrated", "size not known", "told by the card's own forecast"],
)
def test_shared_memory_alone_is_no_spill(snapshots: list[Snapshot]) -> None:
    assert levels(RuleEngine(), snapshots) == []


def windows_memory(t: float, left: float, commit_left: float = 30, vm: float | None = 48) -> Snapshot:
    """Windows with 64 GiB, that can promise 72, in GiB."""
    found = [
        (windows.TOTAL, 64),
        (windows.AVAILABLE, left),
        (windows.COMMIT_LIMIT, 72),
        (windows.COMMITTED, 72 - commit_left),
    ]
    found += [(windows.VM, vm)] if vm is not None else []
    return tick(t, *(Reading(spec, int(value * GIB)) for spec, value in found))


def test_windows_memory_is_reported_once_by_forecast_or_level() -> None:
    def seen(t: int, level: Level) -> Snapshot:
        low = windows_memory(float(t), 2)
        forecast = SourceReport("risk", "ok", Sample((Reading(risk_metrics.LEVEL, int(level), ("windows",)),)), t, 0.0)
        return replace(low, reports=(*low.reports, forecast))

    engine = RuleEngine()
    assert levels(engine, [seen(t, Level.WARNING) for t in range(100)]) == []
    assert levels(engine, [seen(t, Level.OK) for t in range(100, 200)])[0][1:] == ("windows_memory_low", "warning")


def test_windows_short_of_ram_is_reported_a_busy_one_is_not() -> None:
    short = [windows_memory(t, 3.0 if t < 100 else 1.0) for t in range(200)]

    assert levels(RuleEngine(), short) == [
        (30.0, "windows_memory_low", "warning"),
        (130.0, "windows_memory_low", "critical"),
    ]
    assert levels(RuleEngine(), [windows_memory(t, 8.0) for t in range(200)]) == []
    assert levels(RuleEngine(), [windows_memory(t, 2.0 if t % 20 else 9.0) for t in range(200)]) == []


def test_windows_at_its_commit_limit_is_reported() -> None:
    engine = RuleEngine()
    (change,) = [c for t in range(60) for c in engine.observe(windows_memory(t, 20, 2))]
    text = compose(Transition(START, 0, "windows", change.rule, change.old, change.new, facts=change.facts))

    assert str(text.headline) == "Windows can commit only 2.0 GiB more of 72 GiB: its programs will fail"
    assert "holds 48 GiB" in str(text.evidence[0])


def test_windows_short_of_memory_tells_what_wsl_holds() -> None:
    engine = RuleEngine()
    (change,) = [c for t in range(60) for c in engine.observe(windows_memory(t, 3.0))]
    row = Transition(START, 0, "windows", change.rule, change.old, change.new, facts=change.facts)

    assert str(compose(row).headline) == "Windows is short of memory: 3.0 GiB left of 64 GiB; WSL holds 48 GiB"


def test_state_disk_and_windows_disks_have_their_own_limits() -> None:
    def space(t: int, root: float, home: float, c: float) -> Snapshot:
        places = (("/", "ext4", root), ("/home", "ext4", home), ("/mnt/c", "9p", c))
        return tick(t, *(Reading(disk.AVAILABLE, int(v * GIB), (p, kind)) for p, kind, v in places))

    engine = RuleEngine(state_folder="/home/me/state")
    changes = [c for t in range(10) for c in engine.observe(space(t, 0.1, 1.5, 1.0))]

    assert [(c.rule, c.resource, c.new.label) for c in changes] == [
        ("state_disk_full", "disk:/home", "warning"),
        ("windows_disk_full", "disk:/mnt/c", "critical"),
    ]
    assert [c.new.label for t in range(10, 90) for c in engine.observe(space(t, 0.1, 9, 100))] == ["ok", "ok"]


def test_a_source_that_once_answered_is_missed_after_a_minute() -> None:
    engine = RuleEngine()
    engine.observe(tick(0, disk="ok"))
    found = levels(engine, [tick(t, disk="late", jump=-86400.0 * (t > 30)) for t in range(1, 80)])

    assert found == [(61.0, "source_stale", "warning")]


def test_a_failing_store_is_reported_without_the_store() -> None:
    engine = RuleEngine()
    changes = [c for t in range(40) for c in engine.observe(tick(t), store_error="disk full")]

    assert [(c.rule, c.resource, c.old, c.new, c.facts) for c in changes] == [
        ("store_failing", "store", Level.OK, Level.WARNING, {"error": "disk full"})
    ]


def left_open(rule: str, resource: str, level: Level, **facts: Any) -> Transition:
    return Transition(START, 0.0, resource, rule, Level.OK, level, facts=facts)


def test_an_alert_left_open_is_closed_only_when_it_is_over() -> None:
    engine = RuleEngine()
    engine.resume([left_open("swap_thrash", "ram", Level.CRITICAL), left_open("gone", "x", Level.WARNING)], 0.0)

    assert levels(engine, [thrash(t, 0.6) for t in range(1, 30)]) == []
    assert levels(engine, [thrash(t, 0.0) for t in range(30, 70)]) == [(60.0, "swap_thrash", "ok")]


def test_a_warning_before_a_restart_becomes_critical_in_time() -> None:
    engine = RuleEngine()
    engine.resume([left_open("swap_thrash", "ram", Level.WARNING)], 0.0)

    assert levels(engine, [thrash(t, 0.6) for t in range(1, 30)]) == [(21.0, "swap_thrash", "critical")]


def test_a_condition_that_outlasts_a_restart_does_not_ease() -> None:
    """A restart in the middle: only measurements from then on may count."""
    engine = RuleEngine()
    facts = {"grown_bytes": 3 * GIB, "shared_bytes": 4 * GIB, "adapter": "NVIDIA RTX"}
    engine.resume(
        [
            left_open("gpu_driver_gone", "gpu", Level.CRITICAL),
            left_open("source_stale", "source:disk", Level.WARNING),
            left_open("store_failing", "store", Level.CRITICAL),
            left_open("vram_spill", "gpu NVIDIA RTX", Level.CRITICAL, **facts),
        ],
        0.0,
    )

    def look(t: int, used: float, shared: float, health: Health) -> Snapshot:
        never = [SourceReport(name, health, EMPTY, t, 0.0, "it broke") for name in ("disk", "gpu")]
        seen = spilling(t, used, shared)
        return replace(seen, reports=(*seen.reports, *never))

    dark = [look(t, 15.5, 4.0, "failed") for t in range(1, 4000, 5)]
    assert [c for s in dark for c in engine.observe(s, store_error="disk full")] == []
    assert {(rule, level) for _, rule, level in levels(engine, [look(t, 9, 1, "ok") for t in range(4000, 4070)])} == {
        (rule, "ok") for rule in ("gpu_driver_gone", "source_stale", "store_failing", "vram_spill")
    }


@given(st.lists(st.floats(0, 1), max_size=200))
def test_changes_form_a_chain_from_ok_whatever_is_measured(values: list[float]) -> None:
    engine, level = RuleEngine(), Level.OK
    for t, value in enumerate(values):
        for change in engine.observe(thrash(t * 7.0, value)):
            assert (change.old, change.new != level) == (level, True)
            level = change.new


def test_every_rule_has_a_page_in_the_runbook_and_rising_steps() -> None:
    names = [*(r.name for r in RULES), *rules.OTHERS]

    assert sorted(rules.runbook()) == sorted(names)
    assert all(len(text) > 60 for text in rules.runbook().values())
    for rule in RULES:
        for worse, milder in zip(rule.thresholds[1:], rule.thresholds, strict=False):
            assert worse.level > milder.level
            assert rule.beyond(worse.value, milder.value)
        assert rule.beyond(rule.thresholds[0].value, rule.clear)
