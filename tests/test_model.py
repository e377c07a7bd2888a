"""The records between sensor and alert."""

from __future__ import annotations

import re

import pytest

from wslgpud.app.catalogue import catalogue
from wslgpud.metrics import Catalogue, MetricSpec, NameLimit, counter, gauge, info
from wslgpud.model import (
    Event,
    Level,
    ProcessSample,
    Reading,
    Sample,
    Snapshot,
    SourceReport,
    StressResult,
    StressVerdict,
)


@pytest.mark.parametrize(
    ("cgroup", "group", "within"),
    [
        ("/a/b", "/a", True),
        ("/a/b", "/a/b", True),
        ("/a/b", "/a/b/", True),
        ("/a/b", "/", True),
        ("/a/b", "/a/b/c", False),
        ("/ab", "/a", False),
        ("", "/", False),  # not known
    ],
)
def test_a_process_is_within_its_cgroup_and_all_above_it(cgroup: str, group: str, within: bool) -> None:
    assert ProcessSample(7, 1, "p", 10, 5, cgroup=cgroup).within(group) is within


def test_a_process_holds_what_lies_in_ram_and_in_swap() -> None:
    process = ProcessSample(7, 1, "p", 10, 5)
    assert (process.key, process.held_bytes) == ((7, 1), 15)


def test_levels_are_stored_as_these_numbers() -> None:
    numbers = {level.label: int(level) for level in Level}
    assert numbers == {"ok": 0, "info": 1, "warning": 2, "critical": 3, "emergency": 4}


def test_a_line_of_the_kernel_is_quoted_and_never_filled_in() -> None:
    fields = {"victim": "cc1plus"}
    assert str(Event("oom_kill", 1.0, "killed {victim}", fields).message) == "killed cc1plus"
    assert str(Event("nvidia_xid", 1.0, "killed {victim}", fields).message) == "killed {victim}"


def test_a_snapshot_merges_its_sources_but_only_fresh_events() -> None:
    spec, other = gauge("made_bytes", "Made.", "n"), gauge("other_bytes", "Other.")
    process, event = ProcessSample(7, 1, "p", 10, 5), Event("oom_kill", 1.0, "")
    samples = [
        Sample(),
        Sample((Reading(spec, 3, ("a",)), Reading(spec, 0, ("b",))), processes=(process,), events=(event,)),
        Sample((Reading(spec, 4, ("c",)),), events=(event, event)),
    ]
    reports = [SourceReport(f"{n}", "ok", sample, 1.0, 0.1, fresh=n != 2) for n, sample in enumerate(samples)]
    snapshot = Snapshot(1.0, 1.0, 1, tuple(reports))

    assert snapshot.family(spec) == {("a",): 3, ("b",): 0, ("c",): 4}
    assert (snapshot.value(spec, "b"), snapshot.value(spec, "z"), snapshot.value(other)) == (0, None, None)
    assert (snapshot.processes, snapshot.gpus, snapshot.events) == ((process,), (), (event,))


@pytest.mark.parametrize(
    ("verdict", "complete"),
    [("passed", True), ("findings", True), ("left", False), ("skipped", False), ("failed", False)],
)
def test_an_aborted_skipped_or_broken_stress_run_is_not_complete(verdict: StressVerdict, complete: bool) -> None:
    assert StressResult(1.0, "GPU-1", 0, "card", verdict).complete is complete


@pytest.mark.parametrize("spec", list(catalogue()), ids=lambda spec: spec.name)
def test_every_metric_is_declared_by_the_rules(spec: MetricSpec) -> None:
    """https://prometheus.io/docs/practices/naming/; the kind's suffix and the prefix are added."""
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", spec.name)
    assert not spec.name.endswith(("_total", "_info", "_count", "_sum", "_bucket"))
    assert spec.name.endswith(spec.unit)
    assert spec.stored or not spec.decimals, "only a history has a precision"
    assert {names.label for names in spec.names} <= set(spec.labels)


def test_names_chosen_by_users_are_limited_by_an_existing_label() -> None:
    limit = NameLimit("cgroup", "resource", 40, prefix="cgroup:")
    spec = gauge("made_bytes", "Made.", "n", "resource", names=(limit,))

    assert [limit.chosen(spec, ("1", value)) for value in ("cgroup:/a", "ram", "other")] == ["/a", None, None]
    assert NameLimit("program", "n", 1).chosen(spec, ("other", "ram")) is None


def test_a_metric_is_found_with_or_without_prefix_and_suffix() -> None:
    made = {spec.name: spec for spec in (gauge("made_bytes", "M."), counter("kills", "K."), info("boot", "B."))}
    some = Catalogue(made.values())

    for asked in ("made_bytes", "wslgpud_made_bytes", "kills", "kills_total", "wslgpud_kills_total", "boot_info"):
        assert some.find(asked) is made[asked.removeprefix("wslgpud_").partition("_total")[0].partition("_info")[0]]
    assert some.find("made") is None
    assert [spec.exposed_name for spec in some] == ["wslgpud_made_bytes", "wslgpud_kills_total", "wslgpud_boot_info"]
    assert [spec.stored for spec in some] == [True, True, False]
    assert [spec.decimals for spec in some] == [0, 0, 0]
    with pytest.raises(ValueError, match="metric wslgpud_kills is declared twice"):
        Catalogue([made["kills"], counter("kills", "Others.")])
