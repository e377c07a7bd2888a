"""One level, one subject, one message: which one wins, and the message when all is well."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wslgpud.alerts.incidents import OpenIncident, UnseenLoss, after, story
from wslgpud.alerts.rules import RULES
from wslgpud.client import in_one_line
from wslgpud.model import MEMORY, Forecast, Health, Level, Number, Reading, Sample, Snapshot, SourceReport, Transition
from wslgpud.risk.levels import BLIND
from wslgpud.serve.status import judged
from wslgpud.sources.memory import MEMINFO
from wslgpud.verdict import LEVEL, OVER, VERDICT, Verdict, VerdictMetrics, blindness, decide, unwatched
from wslgpud.words import ENGLISH, Message, MessageLike, say, translator

GIB = 1 << 30
NOW = 1_800_000_000.0
ROOMY = Forecast("ram", Level.OK, 30 * GIB, 50 * GIB, 0.0)
SOON = Forecast(
    "cgroup:/train",
    Level.CRITICAL,
    GIB,
    3 * GIB,
    2e7,
    30.0,
    43.0,
    90.0,
    who="python3 train.py (pid 8932)",
    cause="growth",
    who_kind="process",
    window_seconds=60.0,
)


def standing(
    rule: str, resource: str, level: Level = Level.CRITICAL, *, acknowledged: bool = False, **facts: Number | str
) -> OpenIncident:
    row = Transition(NOW - 5.0, 0.0, resource, rule, Level.OK, level, say("something"), facts=facts)
    return OpenIncident(after(None, 7, row), acknowledged, None)


def test_a_live_countdown_outranks_a_kill_that_is_over():
    verdict = decide([SOON], [standing("oom_kill", "cgroup:/other", victim="cc1plus", pid=3)])

    assert (verdict.level, verdict.subject, verdict.cause) == (Level.CRITICAL, "cgroup:/train", "growth")
    assert verdict.who == "python3 train.py (pid 8932)"
    assert verdict.also == 0


def test_of_two_countdowns_of_one_level_the_shorter_one_is_told():
    later = replace(SOON, resource="ram", eta_seconds=200.0)

    assert decide([later, SOON], []).subject == "cgroup:/train"
    assert decide([SOON, later], []).also == 1
    none_left = [replace(SOON, resource=name, eta_seconds=eta) for name, eta in (("gpu1", 0.5), ("ram", 0.0))]
    assert decide([SOON, *none_left], []).subject == "ram"


def test_a_countdown_outranks_a_danger_of_its_level_without_one():
    stalling = replace(SOON, resource="ram", cause="pressure", eta_seconds=None)

    assert decide([stalling, SOON], []).subject == decide([SOON, stalling], []).subject == "cgroup:/train"


def test_a_worse_incident_outranks_a_milder_forecast():
    growing = replace(SOON, level=Level.INFO)
    verdict = decide([growing], [standing("read_only_disk", "disk:/")])

    assert (verdict.level, verdict.subject, verdict.incident, verdict.also) == (Level.CRITICAL, "disk:/", 7, 1)
    assert str(verdict.message) == "/ has become read-only"
    assert verdict.advice


def test_what_somebody_has_acknowledged_is_no_news():
    assert decide([ROOMY], [standing("read_only_disk", "disk:/", acknowledged=True)]).level == Level.OK


@pytest.mark.parametrize("rule", sorted(OVER))
def test_nothing_stays_red_for_what_is_over(rule):
    assert decide([ROOMY], [standing(rule, "ram")]).level == Level.INFO


def test_a_memory_incident_that_only_waits_to_close_is_not_shown():
    assert decide([ROOMY], [standing(MEMORY, "ram", Level.EMERGENCY)]).level == Level.OK


LOST = UnseenLoss(after(None, 9, Transition(NOW, 0.0, "ram", "oom_kill", Level.OK, Level.CRITICAL, say("x"))))


@pytest.mark.parametrize(
    ("level", "state"),
    [(Level.OK, "killed"), (Level.INFO, "killed"), (Level.WARNING, "warning"), (Level.EMERGENCY, "emergency")],
)
def test_a_lost_job_comes_first_unless_something_is_wrong_now(level, state):
    verdict = decide([replace(SOON, level=level)], [], lost=LOST)

    assert (verdict.label, verdict.state, verdict.lost) == (level.label, state, LOST)
    assert decide([SOON], []).state == "critical"


@pytest.mark.parametrize(
    ("path", "pid", "command"),
    [
        ("/build", 7, "kill -INT 7"),
        ("/build", None, "echo 3840M | sudo tee /sys/fs/cgroup/build/memory.max"),
        ("/a b;c", None, "echo 3840M | sudo tee '/sys/fs/cgroup/a b;c/memory.max'"),
        ("/", None, ""),
    ],
)
def test_where_no_culprit_is_sure_a_groups_limit_is_raised(path, pid, command):
    sizes = {"headroom_bytes": GIB // 4, "capacity_bytes": 6 * GIB, "memory_limit_bytes": 3 * GIB}
    group = Forecast(f"cgroup:{path}", Level.WARNING, **sizes, who="make", who_pid=pid, cause="growth")

    assert decide([group], []).command == command
    assert decide([replace(group, level=Level.OK)], []).command == ""


def test_a_lost_job_does_not_hide_that_memory_cannot_be_read():
    assert decide([], [], blind={"ram": "gone"}, lost=LOST).state == "unknown"


def test_after_a_kill_it_says_who_when_and_what_is_free_again():
    killed = replace(ROOMY, cause="killed", who="train.py", window_seconds=23.0)
    ended = Transition(NOW - 23.0, 0.0, "ram", MEMORY, Level.CRITICAL, Level.OK, say("x"), killed)
    verdict = decide([killed], [], [ended])

    assert (verdict.level, verdict.cause) == (Level.OK, "killed")
    assert decide([ROOMY], [], [ended]).cause == "over"
    assert str(verdict.message) == "train.py was killed 23 s ago; 30 of 50 GiB free again"
    assert "train.py" in translator("zh").text(verdict.message)


def test_the_victim_is_the_one_that_the_kernel_names():
    killed = replace(ROOMY, cause="killed", who="probably somebody", window_seconds=3.0)
    facts = {"who": "python3 train.py (pid 8932)"}
    kill = Transition(NOW - 3.0, 0.0, "ram", "oom_kill", Level.OK, Level.CRITICAL, say("x"), facts=facts)
    ended = Transition(NOW - 3.0, 0.0, "ram", MEMORY, Level.CRITICAL, Level.OK, say("x"), killed)

    assert str(decide([killed], [], [kill, ended]).message).startswith("python3 train.py (pid 8932) was killed")


def test_of_two_kills_the_later_one_names_the_victim():
    killed = replace(ROOMY, cause="killed", window_seconds=3.0)
    first, last = (replace(kill(Level.CRITICAL), facts={"who": who}) for who in ("ld (pid 2)", "cc1plus (pid 3)"))

    assert str(decide([killed], [], [first, last]).message).startswith("cc1plus (pid 3) was killed 3 s ago")


def kill(level: Level) -> Transition:
    facts = {"who": "cc1plus (pid 3)"}
    return Transition(NOW - 3.0, 0.0, "ram", "oom_kill", Level.OK, level, say("x"), facts=facts)


def test_a_kill_that_no_warning_could_precede_is_told_as_well():
    killed = replace(ROOMY, cause="killed", window_seconds=3.0)
    told = "cc1plus (pid 3) was killed 3 s ago; 30 of 50 GiB free again"

    assert str(decide([killed], [], [kill(Level.CRITICAL)]).message) == told
    assert decide([killed], [], [kill(Level.OK)]).subject == "", "its incident was closed"
    assert decide([replace(killed, cause="freed")], [], [kill(Level.CRITICAL)]).subject == ""
    refused = replace(kill(Level.CRITICAL), rule="gpu_allocation_refused")
    assert decide([killed], [], [refused]).subject == ""


def test_ram_that_is_full_is_not_fine_because_swap_is_left():
    swapping = Forecast("ram", Level.OK, 7 * GIB + 4096, 12 * GIB, swap_free_bytes=7 * GIB)
    verdict = decide([swapping], [])

    assert (verdict.level, str(verdict.message)) == (Level.INFO, "RAM is full; 7.0 GiB of swap left")
    assert decide([replace(swapping, headroom_bytes=8 * GIB)], []).level == Level.OK


def test_a_calm_verdict_lists_as_many_resources_as_fit_the_line():
    card = Forecast("gpu0", Level.OK, 5 * GIB, 16 * GIB)
    verdict = decide([ROOMY, card], [])

    assert str(verdict.message) == "Memory is fine: RAM 30 of 50 GiB, GPU 0 5.0 of 16 GiB left"
    assert (verdict.subject, verdict.advice, verdict.also) == ("", Message(""), 0)
    groups = [Forecast(f"cgroup:/{name}", Level.OK, GIB, 2 * GIB) for name in ("a", "with-a-much-longer-name", "c")]
    assert str(decide([ROOMY, groups[0], groups[2], groups[1]], []).message) == (
        "Memory is fine: RAM 30 of 50 GiB, cgroup /a 1.0 of 2.0 GiB, cgroup /c 1.0 of 2.0 GiB left"
    )
    assert str(decide([ROOMY, *groups], []).message) == (
        "Memory is fine: RAM 30 of 50 GiB, cgroup /a 1.0 of 2.0 GiB left"
    )
    cards = [Forecast(f"gpu{i}", Level.OK, GIB, 2 * GIB) for i in range(4)]
    assert str(decide(cards, []).message).endswith("GPU 1 1.0 of 2.0 GiB, GPU 2 1.0 of 2.0 GiB left"), "three at most"


def test_a_full_card_is_not_fine_before_the_reason_is_known():
    verdict = decide([ROOMY, Forecast("gpu0", Level.OK, 0, 16 * GIB)], [])

    assert (verdict.level, verdict.subject) == (Level.INFO, "gpu0")
    assert str(verdict.message) == "GPU 0 is full: 0 KiB of 16 GiB left"


def test_memory_that_cannot_be_read_is_unknown_and_never_ok():
    verdict = decide([], [], blind={"ram": "permission denied"})

    assert verdict.label == "unknown"
    assert str(verdict.message) == "The machine's memory cannot be read: permission denied"


def test_a_warning_that_is_seen_outranks_memory_that_is_not():
    lost, noted = (standing("gpu_lost", "gpu0", level) for level in (Level.WARNING, Level.INFO))

    assert decide([], [lost], blind={"ram": "x"}).subject == "gpu0"
    assert decide([], [noted], blind={"ram": "x"}).level is None


def test_why_memory_cannot_be_read_is_what_its_source_says():
    def said(health: Health, error: MessageLike = "", name: str = "memory", seconds: float = 0.0) -> object:
        return blindness(Snapshot(NOW, 0.0, 1, (SourceReport(name, health, Sample(), 0.0, seconds, error),)))

    assert said("failed", "permission denied") == {"ram": "permission denied"}
    assert said("late") == {"ram": "late"}
    assert said("ok", "slow once") == {}
    assert said("failed", "no permission", name="gpu") == {"gpu": "no permission"}
    assert said("absent", "no NVIDIA GPU here", name="gpu") == {}
    assert said("late", "no answer", name="gpu", seconds=10.0) == {}, "a sleeping card may take that long"
    assert said("late", "no answer", name="gpu", seconds=10.1) == {"gpu": "no answer"}


def test_memory_that_nothing_judges_is_unknown_and_never_ok():
    failed = SourceReport("risk", "failed", Sample(), 0.0, 0.0, "internal error: KeyError: 1")
    verdict = decide([], [], blind=blindness(Snapshot(NOW, 0.0, 1, (failed,))))

    assert verdict.level is None
    assert str(verdict.message) == "The state of memory cannot be judged: internal error: KeyError: 1"


def test_ram_is_not_judged_without_what_is_available():
    # lxc/lxcfs#56, microsoft/WSL#296: no MemAvailable
    def seen(*lines: str) -> Snapshot:
        sample = Sample(tuple(Reading(MEMINFO[line], GIB) for line in lines))
        return Snapshot(NOW, 0.0, 1, (SourceReport("memory", "ok", sample, 0.0, 0.0),))

    assert blindness(seen("MemTotal", "MemAvailable")) == {}
    blind = blindness(seen("MemTotal", "MemFree", "Cached"))
    for others in ([], [replace(ROOMY, resource="gpu0")]):
        verdict = decide(others, [], blind=blind)
        assert verdict.level is None
        assert "does not say how much is available" in str(verdict.message)
    assert decide([ROOMY], [], blind=blind).level == Level.OK


def test_ram_and_swap_of_which_nothing_is_left_are_not_fine():
    # lxc/lxcfs#175: 4.7 MiB of RAM, and swap as good as used up
    last = replace(ROOMY, headroom_bytes=40 << 20, capacity_bytes=12 * GIB)
    verdict = decide([last], [])
    assert (verdict.level, verdict.subject, verdict.cause) == (Level.INFO, "ram", "full")
    assert str(verdict.message).startswith("RAM is full")
    assert decide([replace(last, resource="cgroup:/train")], []).level == Level.OK


def test_a_card_that_was_never_read_is_not_passed_over():
    verdict = decide([ROOMY], [], blind={"gpu": "no permission"})

    assert (verdict.level, verdict.subject) == (Level.INFO, "gpu")
    assert str(verdict.message) == "The GPU cannot be read: no permission"
    seen = Forecast("gpu0", Level.OK, 5 * GIB, 16 * GIB)
    assert decide([ROOMY, seen], [], blind={"gpu": "no permission"}).level == Level.OK


def unread(age: float, level: Level = Level.OK) -> Forecast:
    return Forecast("gpu0", level, 65 * GIB, 74 * GIB, cause=BLIND, age_seconds=age)


@pytest.mark.parametrize(
    ("age", "before", "level"),
    [
        (1.0, Level.OK, Level.INFO),
        (2.9, Level.OK, Level.INFO),
        (3.0, Level.OK, Level.WARNING),
        (4.0, Level.CRITICAL, Level.CRITICAL),
    ],
)
def test_memory_no_longer_read_is_never_fine_nor_forecast(age, before, level):
    verdict = decide([ROOMY, unread(age, before)], [])

    assert (verdict.level, verdict.subject, verdict.cause) == (level, "gpu0", "blind")
    assert str(verdict.message) == f"GPU 0: no reading for {round(age)} s; 65 of 74 GiB were left"
    assert "which source is silent" in str(verdict.advice)


def test_a_blind_card_shows_its_incident_and_counts_once():
    opened = standing("blind", "source:gpu", Level.WARNING)
    verdict = decide([ROOMY, unread(4.0)], [opened])

    assert (verdict.incident, verdict.also) == (opened.incident.id, 0)
    read_again = Forecast("gpu0", Level.OK, 65 * GIB, 74 * GIB)
    assert decide([ROOMY, read_again], [opened]).level == Level.OK, "it waits to be closed"
    assert decide([ROOMY], [opened]).level == Level.WARNING, "since a restart it has not been read at all"


def test_a_driver_silent_for_minutes_speaks_for_its_cards():
    gone = standing("gpu_driver_gone", "gpu", Level.CRITICAL)
    verdict = decide([ROOMY, unread(200.0)], [gone, standing("blind", "source:gpu", Level.WARNING)])

    assert (verdict.cause, verdict.also) == ("gpu_driver_gone", 0)


def test_without_a_daemon_nothing_is_called_fine():
    calm, full = decide([ROOMY], []), decide([SOON], [])

    assert unwatched(calm).label == "unknown"
    assert str(unwatched(calm).message) == ("Not watched: no daemon runs here. Memory is fine: RAM 30 of 50 GiB left")
    assert unwatched(full) == full


forecasts = st.lists(
    st.builds(
        Forecast,
        st.sampled_from(["ram", "gpu0", "gpu1", "cgroup:/a"]),
        st.sampled_from(list(Level)),
        st.integers(GIB, 50 * GIB),
        st.just(50 * GIB),
        st.floats(-1e9, 1e9),
        eta_seconds=st.none() | st.floats(0.0, 1e5),
        cause=st.sampled_from(["growth", "steps", "pressure", "oom", "paused", ""]),
    ),
    unique_by=lambda f: f.resource,
)
open_ones = st.lists(
    st.builds(
        standing,
        st.sampled_from([rule.name for rule in RULES]),
        st.sampled_from(["ram", "gpu0", "disk:/", "source:gpu"]),
        st.sampled_from([Level.INFO, Level.WARNING, Level.CRITICAL]),
        acknowledged=st.booleans(),
    ),
    unique_by=lambda one: one.incident.key,
)


@given(forecasts, open_ones)
def test_the_verdict_is_as_bad_as_the_worst_that_is_true_now(seen, known):
    verdict = decide(seen, known)
    worst = [f.level for f in seen]
    for one in known:
        told = one.incident.rule == BLIND and any(f.resource.startswith("gpu") for f in seen)
        if story(one.incident.rule) != MEMORY and not one.acknowledged and not told:
            over = one.incident.rule in OVER
            worst.append(min(one.incident.level, Level.INFO) if over else one.incident.level)

    assert verdict.level == max(worst, default=Level.OK)
    for language in ("en", "zh"):
        assert translator(language).text(verdict.message)
        assert "{" not in translator(language).text(verdict.message)


def test_verdict_metrics_keep_the_figures_of_the_last_change():
    told = VerdictMetrics()
    told.observe(decide([SOON], []))
    first = list(told.readings())
    told.observe(decide([replace(SOON, eta_seconds=20.0)], []))

    assert list(told.readings()) == first
    level, verdict = first
    assert (level.spec, level.value) == (LEVEL, 3)
    assert (verdict.spec, verdict.value) == (VERDICT, 1)
    assert verdict.labels[:4] == ("critical", "cgroup:/train", "growth", "python3 train.py (pid 8932)")
    told.observe(decide([], [], blind={"ram": "x"}))
    assert [reading.spec for reading in told.readings()] == [VERDICT]


@pytest.mark.parametrize(
    ("headline", "who", "named"),
    [
        ("RAM is full; ffmpeg (pid 9) came last", "python3 train.py (pid 7)", True),
        ("python3 train.py (pid 7) fills RAM", "python3 train.py (pid 7)", False),
        ("RAM is full", "probably a program", True),
    ],
)
def test_the_line_for_systemd_names_the_culprit_once(*, headline: str, who: str, named: bool) -> None:
    line = in_one_line(judged(Verdict(Level.WARNING, Message(headline), who=who), ENGLISH, NOW))

    assert line.startswith(headline)
    assert (len(line) > len(headline)) == named
    assert line.count(who) == 1
