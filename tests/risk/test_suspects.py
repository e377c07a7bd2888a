"""Who takes a card whose driver tells nothing: named where that is likelier than not, with how likely it is."""

from dataclasses import replace

import pytest

from tests.bench.bench_suspects import FOLDER, judged, questions
from wslgpud.model import Expected, GpuProcess, GpuSample, Observation, ProcessSample
from wslgpud.risk.attribution import GpuAttribution
from wslgpud.risk.engine import RiskEngine
from wslgpud.risk.owners import CardSuspects, Clues, chances

GIB = 1 << 30


def process(pid: int, cpu_seconds: float, name: str = "python3") -> ProcessSample:
    return ProcessSample(
        pid, 1, name, GIB, 0, roles=frozenset({"gpu"}), command=f"{name} {pid}.py", cpu_seconds=cpu_seconds
    )


def card(used: float, *listed: GpuProcess) -> GpuSample:
    return GpuSample(0, "GPU-1", "a card", 16 * GIB, int(used * GIB), processes=listed)


def seen(t: float, *processes: ProcessSample, used: float = 4.0, expected: tuple[Expected, ...] = ()) -> Observation:
    return Observation(t=t, processes=processes, gpus=(card(used),), wsl=True, expected=expected)


def blamed(*observations: Observation) -> str:
    attribution = GpuAttribution()
    for one in observations:
        attribution.push(one.t, one.gpus[0])
        attribution.suspects.push(one, one.gpus[0])
    return str(attribution.culprit(observations[-1], observations[-1].gpus[0], 10.0, GIB).who)


def test_whoever_came_while_the_card_filled_is_named():
    before = [seen(float(t), process(7, t), process(8, t)) for t in range(0, 30, 5)]
    after = [seen(float(t), process(7, t), process(8, t), process(9, t - 28.0)) for t in range(30, 45, 5)]
    assert blamed(*before, *after) == "probably python3 9.py (pid 9), 91 %"


def test_whoever_works_more_than_before_is_suspected():
    calm = [seen(float(t), process(7, t), process(8, 0.0)) for t in range(0, 30, 5)]
    busy = [seen(float(t), process(7, t), process(8, t - 25.0)) for t in range(30, 45, 5)]
    assert blamed(*calm, *busy).startswith("probably python3 8.py (pid 8), 7")


def test_of_several_that_work_as_ever_nobody_is_named():
    assert blamed(*(seen(float(t), process(7, t), process(8, t / 2)) for t in range(0, 45, 5))) == (
        "one of 2 programs on it"
    )


def test_a_measured_program_is_no_suspect_for_the_rest() -> None:
    def look(t: float, grown: float) -> Observation:
        listed = (GpuProcess(7, "python3", int((2 + grown) * GIB)), GpuProcess(8, "python3", None))
        one = seen(t, process(7, t), process(8, 0.0 if t < 30 else t - 29.0))
        return replace(one, gpus=(card(4.0 + grown, *listed),))

    steady = [look(float(t), 0.0) for t in range(0, 45, 5)]
    assert "8.py" in blamed(*steady)
    growing = [look(float(t), max(0.0, t - 30) * 1.0) for t in range(0, 45, 5)]
    assert blamed(*growing) == "python3 7.py (pid 7)"


def test_what_is_measured_from_now_on_has_not_grown_just_now() -> None:
    def look(t: float, *, known: bool) -> Observation:
        listed = (GpuProcess(7, "python3", 9 * GIB),) if known else ()
        one = seen(t, process(7, t))
        return replace(one, gpus=(replace(card(10.0 + t / 20, *listed), demoted_bytes=0 if known else None),))

    assert blamed(*(look(float(t), known=t >= 40) for t in range(0, 45, 5))) != "python3 7.py (pid 7)"


def test_a_command_run_by_guard_is_suspected_more():
    def chance(*noted: Expected) -> float:
        suspects = CardSuspects()
        looks = [seen(float(t), process(7, t), process(8, t), expected=noted) for t in range(0, 45, 5)]
        for one in looks:
            suspects.push(one, card(4.0))
        found = suspects.likeliest(looks[-1], card(4.0), 10.0)
        assert found is not None
        return found.chance if found.process.pid == 8 else 0.0

    assert chance(Expected("GPU-1", "train", 8 * GIB, GIB, (8,))) > 0.5 > chance()
    assert chance(Expected("GPU-2", "train", 8 * GIB, GIB, (8,))) <= 0.5


def clues(looks: list[Observation], window: float = 20.0) -> dict[int, Clues]:
    suspects = CardSuspects()
    for one in looks:
        suspects.push(one, one.gpus[0])
    return {process.pid: found for process, found in suspects.clues(looks[-1], looks[-1].gpus[0], window)}


def test_a_program_that_appeared_meanwhile_counts_as_new():
    began = {6: 0.0, 7: 30.0, 8: 31.0, 9: 50.0}
    looks = [seen(float(t), *(process(p, t) for p, since in began.items() if since <= t)) for t in range(61)]

    assert {pid: found.new for pid, found in clues(looks).items()} == {6: 0, 7: 0, 8: 1, 9: 1}
    assert {pid: found.new for pid, found in clues(looks, 29.0).items()} == {6: 0, 7: 1, 8: 1, 9: 1}
    assert {pid: found.new for pid, found in clues(looks, 1.0).items()} == {6: 0, 7: 0, 8: 0, 9: 1}
    assert {found.new for found in clues(looks[:1]).values()} == {0}, "nothing is known of before"


def test_change_in_work_counts_in_orders_of_magnitude():
    def worked(t: int, before: float, since: float, began: int = 0) -> float:
        return before * (min(t, 100) - began) + since * max(0, t - 100)

    def looked(t: int) -> Observation:
        rates = [(0.1, 1.0), (1.0, 0.0), (0.0, 5.0), (0.5, 0.5)]
        busy = [process(pid, worked(t, *rate)) for pid, rate in enumerate(rates, 6)]
        # idle until a minute before; and known for three seconds, or for two only
        busy += [process(10, max(0, t - 40) * 0.5)]
        busy += [process(began, 0.5 * min(t, 100)) for began in (97, 98) if t >= began]
        return seen(float(t), *busy)

    found = {pid: clue.changed for pid, clue in clues([looked(t) for t in range(85, 121)]).items()}
    assert found == pytest.approx({6: 0.929, 7: 1.708, 8: 2.0, 9: 0.0, 10: 0.0, 97: 1.415, 98: 0.0}, abs=0.001)
    assert clues([looked(t) for t in range(0, 121, 5)])[10].changed == 0.0


def test_suspects_hold_the_gpu_or_are_listed_by_the_driver():
    elsewhere, listed = (replace(process(pid, 1.0), roles=frozenset()) for pid in (7, 8))
    holder, told = process(9, 1.0), Expected("GPU-1", "train", 8 * GIB, GIB, (8,))
    gpus = (card(4.0, GpuProcess(8, "python3", None)),)
    now = Observation(t=0.0, processes=(elsewhere, listed, holder), gpus=gpus, wsl=True, expected=(told,))

    assert clues([now]) == {8: Clues(0, 0, noted=1), 9: Clues(0, 0, noted=0)}


def test_each_clue_has_its_weight():
    alone = [Clues(0, 0, 0), Clues(1, 0, 0), Clues(0, 1, 0), Clues(0, 0, 1)]

    assert [chances([one])[0] for one in alone] == pytest.approx([0.5, 0.968, 0.937, 0.731], abs=0.001)
    assert chances([alone[0]] * 3) == [0.25] * 3


def test_without_a_process_on_the_gpu_nobody_is_suspected():
    plain = ProcessSample(7, 1, "make", GIB, 0)
    assert blamed(*(seen(float(t), plain) for t in range(0, 45, 5))) == ""


def test_on_native_linux_what_the_driver_tells_is_what_counts():
    attribution, listed = GpuAttribution(), GpuProcess(7, "python3", GIB)
    now = Observation(t=20.0, processes=(process(9, 1.0),), gpus=(card(4.0, listed),))
    for t in range(20):
        attribution.push(float(t), now.gpus[0])
    assert attribution.culprit(now, now.gpus[0], 10.0, GIB).kind == "unknown"


def test_a_suspect_has_not_ended_as_long_as_linux_shows_it():
    engine, levels = RiskEngine(), []
    for t in range(100):
        own = [process(7, float(t))] if t < 10 else [process(7, float(t)), process(9, t - 10.0)]
        (forecast,) = engine.observe(seen(float(t), *own, used=min(15.2, 4 + 0.125 * t))).forecasts
        levels.append((int(forecast.level), forecast.cause))
    assert max(levels)[0] >= 2
    assert not any(cause == "freed" for _, cause in levels)


@pytest.mark.parametrize("least", [0.5, 0.8])
def test_on_the_recordings_the_right_one_is_nearly_always_named(least):
    found = [one for path in sorted(FOLDER.glob("*.jsonl.gz")) for one in judged(list(questions(path)))]
    sure = [right for chance, right, _ in found if chance >= least]
    assert len(sure) > 30
    assert sum(sure) / len(sure) > 0.9


def telling(used: float, told: float, *listed: GpuProcess) -> GpuSample:
    return replace(card(used, *listed), self_reported=(GpuProcess(8, "train.py", int(told * GIB)),))


def answered(*cards: GpuSample) -> str:
    """Return who is named after a card's samples, one each second, beside two processes that work as ever."""
    attribution = GpuAttribution()
    for t, one in enumerate(cards):
        now = Observation(t=float(t), processes=(process(7, t), process(8, t)), gpus=(one,), wsl=True)
        attribution.push(now.t, one)
        attribution.suspects.push(now, one)
    return str(attribution.culprit(now, cards[-1], 10.0, GIB / 10).who)


def test_a_training_that_reports_its_growth_is_named_for_certain():
    assert answered(*(telling(4 + t / 10, 2 + t / 10) for t in range(45))) == "python3 8.py (pid 8)"


def test_a_training_that_reports_no_growth_is_a_usual_suspect():
    """Or it could shift the blame to its neighbours."""
    assert answered(*(telling(4 + t / 10, 2) for t in range(45))) == "one of 2 programs on it"


def test_where_the_driver_knows_a_program_its_word_is_ignored():
    def listed(used: float) -> tuple[GpuProcess, GpuProcess]:
        return GpuProcess(7, "python3", int(used * GIB)), GpuProcess(8, "python3", 2 * GIB)

    assert answered(*(telling(4 + t / 10, 9 + t, *listed(2 + t / 10)) for t in range(45))) == "python3 7.py (pid 7)"


def test_a_gap_in_the_list_of_processes_makes_nobody_a_newcomer():
    working = [seen(float(t), process(7, t)) for t in range(0, 40, 2)]
    unknown = [replace(one, processes=()) if 10 <= one.t < 20 else one for one in working]
    assert blamed(*working) == blamed(*unknown) == "probably python3 7.py (pid 7), 50 %"


def test_a_program_that_is_measured_no_longer_is_no_newcomer():
    measured = (GpuProcess(7, "python3", 2 * GIB),)
    known = [replace(seen(float(t), process(7, t)), gpus=(card(4.0, *measured),)) for t in range(0, 30, 2)]
    unknown = [seen(float(t), process(7, t)) for t in range(30, 34, 2)]
    assert blamed(*known, *unknown) == "probably python3 7.py (pid 7), 50 %"
