"""What the engine learns about a machine: the usable end of a card, growth that comes back, and what it stores."""

import dataclasses

import pytest

from tests.risk.wording import headline_of
from wslgpud.model import CgroupState, GpuProcess, GpuSample, Level, Observation, RamState
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.forecast_messages import headline
from wslgpud.risk.levels import shown_level

GIB = 1 << 30
A, B = "GPU-aaaa", "GPU-bbbb"


def card(index, uuid, used, programs=(), total=16):
    processes = tuple(GpuProcess(pid, name, None) for pid, name in programs)
    size, taken = total * GIB, int(used * GIB)
    return GpuSample(index, uuid, "card", size, taken, size - taken, processes=processes)


def run(engine, ticks):
    """Observe (t, cards, more...); return all failures, all changes, and the last forecasts by resource."""
    failures, changes, forecasts = [], [], {}
    for t, cards, *more in ticks:
        seen = engine.observe(Observation(t=float(t), gpus=tuple(cards), **(more[0] if more else {})))
        failures += seen.failures
        changes += seen.changes
        forecasts = {f.resource: f for f in seen.forecasts}
    return failures, changes, forecasts


def training(until=15.8, pid=7, uuid=A):
    """Two minutes of a training that leaks."""
    return [(t, [card(0, uuid, 4 + (until - 4) * t / 120, [(pid, "python")])]) for t in range(121)]


def test_a_program_ending_on_a_full_card_probably_ran_out_of_it():
    failures, _, forecasts = run(RiskEngine(), [*training(), (121, [card(0, A, 0.5)])])

    (failure,) = failures
    assert (failure.resource, failure.uuid, failure.program) == ("gpu0", A, "python")
    assert forecasts["gpu0"].capacity_learned == "probable"
    assert forecasts["gpu0"].capacity_bytes == int(15.8 * GIB)


def test_a_probable_ceiling_is_dropped_once_more_is_used():
    engine = RiskEngine()
    run(engine, [*training(), (121, [card(0, A, 0.5)])])
    _, _, forecasts = run(engine, [(130, [card(0, A, 15.9)])])

    assert forecasts["gpu0"].capacity_learned == ""
    assert forecasts["gpu0"].capacity_bytes == 16 * GIB


@pytest.mark.parametrize(
    "story",
    [
        [(t, [card(0, A, 15.7, [(7, "python")])]) for t in range(120)] + [(120, [card(0, A, 0.5)])],
        [*training(until=13), (121, [card(0, A, 0.5)])],
        [*training(), (121, [card(0, A, 15.0)]), (122, [card(0, A, 14.9)])],
        [*training(), (121, [card(0, A, 2.0, [(7, "python")])])],
    ],
    ids=["a server that is stopped", "far from full", "another program ends", "its own cache is emptied"],
)
def test_what_may_well_have_ended_by_itself_teaches_nothing(story):
    failures, _, forecasts = run(RiskEngine(), story)

    assert not failures
    assert forecasts["gpu0"].capacity_learned == ""


def test_without_programs_repeated_falls_are_reported_only_once():
    def tooth(start):
        up = [(start + t, [card(0, A, 4 + 11.8 * t / 120)]) for t in range(121)]
        return [*up, *((start + 121 + t, [card(0, A, 0.5)]) for t in range(30))]

    failures, _, _ = run(RiskEngine(), [tick for i in range(4) for tick in tooth(200 * i)])

    assert len(failures) == 1


def test_a_fall_teaches_nothing_if_the_card_was_as_full_before():
    up = [(t, [card(0, A, 4 + 11.8 * t / 120)]) for t in range(121)]
    slowly_down = [(121 + t, [card(0, A, 15.8 - 15 * t / 240)]) for t in range(241)]
    again = [(400 + t, cards) for t, cards in up]

    failures, _, forecasts = run(RiskEngine(), [*up, *slowly_down, *again, (521, [card(0, A, 0.5)])])

    assert not failures
    assert forecasts["gpu0"].capacity_learned == ""


def test_a_windows_refusal_concerns_only_the_growing_card():
    calm = [card(1, B, 13)]
    story = [(t, [card(0, A, 6 + 0.15 * t), *calm]) for t in range(60)]
    _, changes, forecasts = run(
        RiskEngine(), [*story, (60, [card(0, A, 15), *calm], {"exhausted": ("gpu",), "wsl": True})]
    )

    assert forecasts["gpu0"].capacity_learned == "seen"
    assert forecasts["gpu1"].capacity_learned == ""
    assert forecasts["gpu1"].level == Level.OK
    assert changes[-1].resource == "gpu0"
    assert changes[-1].new == Level.CRITICAL


def test_of_cards_at_rest_it_concerns_the_fullest():
    cards = [card(0, A, 3), card(1, B, 15)]
    story = [(t, cards) for t in range(30)]
    _, _, forecasts = run(RiskEngine(), [*story, (30, cards, {"exhausted": ("gpu",)})])

    assert (forecasts["gpu0"].level, forecasts["gpu1"].level) == (Level.OK, Level.CRITICAL)


def test_cards_swapping_numbers_keep_their_lessons_and_alerts():
    leak = [(t, [card(0, A, 4 + 0.1 * t), card(1, B, 2)]) for t in range(115)]
    _, before, _ = run(engine := RiskEngine(), leak)
    _, after, forecasts = run(engine, [(115 + t, [card(0, B, 2), card(1, A, 15.5 + 0.01 * t)]) for t in range(3)])

    assert before[-1].resource == "gpu0"
    assert before[-1].new >= Level.CRITICAL
    assert [(c.resource, c.new) for c in after] == [("gpu0", Level.OK), ("gpu1", before[-1].new)]
    assert forecasts["gpu0"].eta_seconds is None
    assert forecasts["gpu1"].eta_seconds is not None


def test_a_renumbered_cards_alert_closes_under_its_old_number():
    leak = [(t, [card(0, B, 2), card(1, A, 4 + 0.1 * t)]) for t in range(115)]
    run(engine := RiskEngine(), leak)
    _, after, _ = run(engine, [(115, [card(0, A, 15.6)])])

    assert {(c.resource, c.new >= Level.CRITICAL) for c in after} == {("gpu0", True), ("gpu1", False)}


def test_an_ended_containers_alert_is_not_passed_to_a_namesake():
    def group(used):
        return (CgroupState("/docker/x", 4 * GIB, int(used * GIB)),)

    full = [(t, [], {"cgroups": group(2 + 0.02 * t)}) for t in range(99)]
    late = [(t, [], {"late": ("cgroup",)}) for t in range(99, 300)]
    _, before, _ = run(engine := RiskEngine(), full)
    _, hung, _ = run(engine, late)
    _, after, _ = run(engine, [(t, []) for t in range(300, 400)])
    _, again, _ = run(engine, [(t, [], {"cgroups": group(1)}) for t in range(400, 500)])

    assert before[-1].new >= Level.WARNING
    assert [c for c in hung if c.new == Level.OK] == []
    assert [(c.resource, c.new, c.forecast.eta_seconds) for c in after] == [("cgroup:/docker/x", Level.OK, None)]
    assert again == []


def test_a_card_that_vanishes_and_returns_keeps_its_lessons():
    run(engine := RiskEngine(), [*training(), (121, [card(0, A, 0.5)])])
    _, _, gone = run(engine, [(130, [])])
    _, _, back = run(engine, [(160, [card(0, A, 0.5)])])

    assert gone == {}
    assert back["gpu0"].capacity_learned == "probable"


def test_what_was_learned_survives_a_restart():
    first = RiskEngine()
    run(first, [*training(), (121, [card(0, A, 0.5)])])
    second = RiskEngine()
    for key, document in first.lessons().items():
        second.recall(key, document, 3600.0)
    _, _, forecasts = run(second, [(5, [card(0, A, 1), card(1, B, 1)])])

    assert forecasts["gpu0"].capacity_bytes == int(15.8 * GIB)
    assert forecasts["gpu1"].capacity_bytes == 16 * GIB


def night_saw(engine, start, cycles):
    """A job that fills RAM to seven eighths and gives it back; return the worst level."""
    worst, ramp = Level.OK, 240
    for t in range(cycles * 300):
        used = 4 + 17.2 * min(1.0, (t % 300) / ramp) if t % 300 < 260 else 4
        ram = RamState(24 * GIB, int((24 - used) * GIB))
        for forecast in engine.observe(Observation(t=start + t, ram=ram)).forecasts:
            worst = max(worst, forecast.level)
    return worst


def test_a_harmless_peak_outlives_a_restart_but_not_forever():
    first = RiskEngine()
    assert night_saw(first, 0.0, 3) >= Level.WARNING
    kept = first.lessons()["ram"]

    for age, believed in ((600.0, True), (7 * 3600.0, False)):
        second = RiskEngine()
        second.recall("ram", kept, age)
        assert (night_saw(second, 5.0, 1) < Level.WARNING) is believed


@pytest.mark.parametrize("document", [{}, {"capacity_bytes": 8 * GIB, "peaks": [[1.0, 0.9]]}])
def test_what_is_kept_of_another_machine_is_left_out(document):
    engine = RiskEngine()
    engine.recall("ram", document, 1.0)
    engine.recall(A, document, 1.0)
    _, _, forecasts = run(engine, [(0, [card(0, A, 1)], {"ram": RamState(24 * GIB, 20 * GIB)})])

    assert forecasts["gpu0"].capacity_bytes == 16 * GIB
    assert engine.lessons()["ram"] == {}


def leaking(engine, until, *, then=()):
    """RAM that fills at 0.1 GiB per second up to ``until``, then observations without it."""
    changes = []
    for t in range(until):
        ram = RamState(24 * GIB, int((20 - 0.1 * t) * GIB))
        changes += engine.observe(Observation(t=float(t), ram=ram)).changes
    late = [engine.observe(Observation(t=float(until + t), late=("ram",))) for t in then]
    return changes, late


def test_without_samples_an_alert_stays_and_nothing_is_forecast():
    changes, late = leaking(RiskEngine(), 160, then=range(0, 200, 10))

    assert changes[-1].new >= Level.WARNING
    first, last = late[0].forecasts[0], late[-1].forecasts[0]
    assert (first.age_seconds, last.age_seconds) == (1.0, 191.0)
    assert (last.cause, last.eta_seconds, last.rate_bytes_per_second, last.who) == ("blind", None, None, "")
    assert last.headroom_bytes == first.headroom_bytes
    assert all(seen.forecasts[0].level >= changes[-1].new for seen in late)
    assert str(headline(last)) == "RAM: no reading for 3 min; 4.1 of 24 GiB were left"


def test_resources_keep_their_place_while_one_is_not_read():
    engine, gpus = RiskEngine(), (card(0, A, 1),)
    host = RamState(64 * GIB, 9 * GIB)
    ram, group = RamState(24 * GIB, 20 * GIB), CgroupState("/a", GIB, GIB // 2)
    whole = Observation(t=0.0, ram=ram, gpus=gpus, windows=host, cgroups=(group,))
    seen = [engine.observe(whole)]
    for t, missing in enumerate(({"windows": None}, {"gpus": (), "late": ("gpu",)}, {"ram": None, "late": ("ram",)})):
        seen.append(engine.observe(dataclasses.replace(whole, t=1.0 + t, **missing)))

    order = ["ram", "gpu0", "windows", "cgroup:/a"]
    assert [[forecast.resource for forecast in one.forecasts] for one in seen] == [order] * 4


def test_a_forecast_keeps_counting_down_while_a_trace_skips_ram():
    changes, seen = [], RiskEngine()
    for t in range(150):
        ram = RamState(24 * GIB, int((20 - 0.1 * t) * GIB))
        changes.append(seen.observe(Observation(t=float(t), ram=ram)).forecasts[0].eta_seconds)
    (later,) = seen.observe(Observation(t=159.0)).forecasts

    assert later.age_seconds == 10.0
    assert later.eta_seconds == pytest.approx(changes[-1] - 10.0)


def test_a_hanging_read_near_exhaustion_warns_before_the_sample():
    engine = RiskEngine()
    changes, late = leaking(engine, 135, then=range(12))
    raised = [change for seen in late for change in seen.changes]

    assert max((c.new for c in changes), default=Level.OK) == Level.INFO
    assert [c.new for c in raised] == [Level.WARNING]
    assert raised[0].mono <= 145
    assert "machine stalled" in headline_of(raised[0])


def test_a_late_read_with_ample_memory_is_shown_but_no_alert():
    _, late = leaking(RiskEngine(), 30, then=range(120))

    assert not [change for seen in late for change in seen.changes]
    assert [shown_level(seen.forecasts[0]).label for seen in late] == ["info"] * 2 + ["warning"] * 118


def test_a_hung_driver_keeps_its_card_and_a_gone_one_does_not():
    run(engine := RiskEngine(), training(until=10))
    _, _, hangs = run(engine, [(121, [], {"late": ("gpu",)})])
    _, _, gone = run(engine, [(122, [])])

    assert hangs["gpu0"].age_seconds == 1.0
    assert gone == {}


def test_beyond_256_resources_the_longest_unseen_are_forgotten():
    engine = RiskEngine()

    def known_after(t: float, *names: str) -> set[str]:
        engine.observe(Observation(t=t, cgroups=tuple(CgroupState(name, 1000, 100) for name in names)))
        assert {last.key for last in engine._last.values()} == engine._trackers.keys()
        return {key.removeprefix("cgroup:") for key in engine._trackers}

    first = [f"/{i}" for i in range(255)]
    assert known_after(0.0, *first) == {*first}
    assert known_after(1.0, "/256") == {*first, "/256"}
    assert known_after(600.0, "/257") == {*first[1:], "/256", "/257"}
    assert known_after(600.5, "/258") == {*first[2:], "/256", "/257", "/258"}
