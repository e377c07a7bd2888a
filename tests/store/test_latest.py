"""The newest values, processes and steps of a history, at the edges of what is looked through."""

from __future__ import annotations

import pytest

from wslgpud.model import GpuProcess, GpuSample, ProcessSample, StressFinding, StressResult
from wslgpud.security.shapes import MalformedError
from wslgpud.store import Outbox, ProcessPoint, Store, records
from wslgpud.store.records import GpuProcessPoint
from wslgpud.store.writer import WriteBuffer
from wslgpud.words import say


@pytest.fixture
def store(file, settings, clock):
    with Store(file, settings, host_name="pc", clock=clock) as opened:
        yield opened


@pytest.mark.parametrize(("age", "known"), [(65, True), (66, False)])
def test_a_value_that_is_read_once_a_minute_is_among_the_latest(store, made, age, known):
    store.append(made.snapshot(made.T0, {made.RATIO: 0.5}), urgent=True)
    store.append(made.snapshot(made.T0 + age, {made.EVENTS: 7}), urgent=True)
    assert store.flush()

    found = {ref.metric: (point.wall - made.T0, point.value) for ref, point in store.reader.latest().items()}
    assert found == {"made_events": (age, 7), **({"made_ratio": (0, 0.5)} if known else {})}


def test_processes_come_in_bytes_for_the_whole_period_asked_for(store, made):
    for second in (0, 1, 2, 3):
        process = ProcessSample(40 + second, 9, "python", (second + 1) << 20, second << 10)
        gpu = GpuSample(
            0, "GPU-1", "card", processes=(GpuProcess(40, "python", 3 << 10), GpuProcess(41, "other", None))
        )
        store.append(made.snapshot(made.T0 + second, {}, processes=(process,), gpus=(gpu,)))
    assert store.flush()
    at = made.T0 + 1

    assert store.reader.processes(at, at + 1) == [
        ProcessPoint(at, 41, 9, "python", 2 << 20, 1 << 10),
        ProcessPoint(at + 1, 42, 9, "python", 3 << 20, 2 << 10),
    ]
    assert store.reader.gpu_processes(at, at) == [
        GpuProcessPoint(at, "GPU-1", 40, "python", 3 << 10),
        GpuProcessPoint(at, "GPU-1", 41, "other", None),
    ]


def test_messages_wait_over_a_restart_with_their_attempts(file, settings, clock, made):
    clock.now = made.T0 + 0.25
    with Store(file, settings, host_name="pc", clock=clock) as store:
        for text in ("first", "second", "third"):
            store.outbox.post("ntfy", {"text": text})
        first, second, _ = store.outbox.unsent("ntfy")
        store.outbox.tried(first.id, "refused", done=False)
        store.outbox.tried(first.id, "still refused", done=False)
        clock.now += 2
        store.outbox.tried(second.id, done=True)
        store.outbox.tried(second.id, "too late", done=False)
    with Store(file, settings, host_name="pc", clock=clock) as store:
        left = store.outbox.unsent()
        known = list(store.reader.deliveries(made.T0 + 0.25, made.T0 + 0.25))
        assert list(store.reader.deliveries(made.T0, made.T0 + 0.249)) == []
        assert list(store.reader.deliveries(made.T0 + 0.251, made.T0 + 1)) == []

    told = [(one.payload["text"], one.attempts, str(one.error), one.created_wall, one.done_wall) for one in left]
    assert told == [("first", 2, "still refused", made.T0 + 0.25, None), ("third", 0, "", made.T0 + 0.25, None)]
    assert [(one.attempts, one.done_wall) for one in known] == [(2, None), (1, made.T0 + 2.25), (0, None)]


def test_the_time_watched_is_of_the_last_thirty_days(file, settings, clock, made):
    day = 86400
    for began, ended in ((-40, -35), (-31, -29), (-2, -1)):
        clock.now = made.T0 + began * day
        with Store(file, settings, host_name="pc", clock=clock):
            clock.now = made.T0 + ended * day
    clock.now = made.T0
    with Store(file, settings, host_name="pc", clock=clock) as store:
        assert store.watched_seconds == (1 + 1) * day
        assert store.previous_run[:3] == (made.T0 - 2 * day, made.T0 - day, True)


def test_stress_runs_come_by_pages_the_newest_last(store, made):
    for number in range(5):
        store.record_stress(StressResult(made.T0 - number, "GPU-a", 0, "RTX", "passed", detail={"rows": [number]}))
    assert store.flush()
    reader, first = store.reader, store.reader.stress_runs(newest=5)[0][0]

    assert [n - first for n, _ in reader.stress_runs()] == [4, 3, 2, 1, 0]
    assert [n - first for n, _ in reader.stress_runs(newest=2)] == [3, 4]
    assert [n - first for n, _ in reader.stress_runs(newest=2, before=first + 3)] == [1, 2]
    assert [run.detail for _, run in reader.stress_runs(newest=1)] == [{"rows": [4]}]
    assert [run.detail for _, run in reader.stress_runs(newest=1, brief=True)] == [{}]
    assert reader.count_stress_runs() == 5
    assert (reader.stress_run(first + 1).wall, reader.stress_run(first + 5)) == (made.T0 - 1, None)


def test_accepted_alerts_are_written_at_once_refused_ones_later(made):
    woken = []
    outbox = Outbox(WriteBuffer(lambda: made.T0), lambda: made.T0 + 0.12345, lambda: woken.append("wake"))
    for text in ("first", "second"):
        outbox.post("mail", {"text": text})
    first, second = outbox.unsent("mail")
    assert (first.attempts, first.created_wall, woken) == (0, made.T0 + 0.123, ["wake"] * 2)

    outbox.tried(first.id, "refused", done=False)
    assert ([one.attempts for one in outbox.unsent()], woken) == ([1, 0], ["wake"] * 2)
    outbox.tried(second.id, done=True)
    assert ([one.attempts for one in outbox.unsent()], woken) == ([1], ["wake"] * 3)


def stress_document(**changed):
    findings = (StressFinding("errors", say("3 words")),)
    run = StressResult(1.5, "GPU-a", 65_535, "RTX", "findings", "", findings, {"driver": "570"}, {"errors": 3})
    return {**records.stress_to_json(run), **changed}


def test_a_stress_run_is_read_as_written_without_unknown_fields():
    document = stress_document(later="x")

    assert records.stress_to_json(records.stress_from_json(document)) == stress_document()
    for name in ("reason", "findings", "key", "values", "detail"):
        del document[name]
    assert records.stress_from_json(document) == StressResult(1.5, "GPU-a", 65_535, "RTX", "findings")
    assert records.stress_from_json({**document, "wall": 0.0}).wall == 0.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wall", -0.001),
        ("wall", 1e15),
        ("wall", "now"),
        ("uuid", 5),
        ("gpu", 65_536),
        ("gpu", -1),
        ("gpu", 0.5),
        ("name", None),
        ("verdict", "fine"),
        ("findings", [{"kind": "other", "text": ""}]),
        ("findings", [{"kind": "errors"}]),
        ("key", {"driver": 570}),
        ("values", {"errors": "3"}),
    ],
)
def test_a_stress_run_with_a_bad_field_is_refused_by_its_name(name, value):
    with pytest.raises(MalformedError, match=f"its {name} is malformed: "):
        records.stress_from_json(stress_document(**{name: value}))
    document = stress_document()
    if name in ("wall", "uuid", "gpu", "name", "verdict"):
        del document[name]
        with pytest.raises(MalformedError, match=f"it has no {name}"):
            records.stress_from_json(document)
