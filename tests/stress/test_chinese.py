"""The screens of stress, guard, fit and sweep are Chinese to the last word that is no name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from tests.stress.support import MIB, gpu, night
from tests.words.latin import latin_words
from wslgpud import words
from wslgpud.active_runs import PHASES, headline
from wslgpud.advise.fit.plan import PRECISIONS, Mode, Optimizer
from wslgpud.advise.guard.runner import GuardedCommand, GuardedRun
from wslgpud.advise.guard.sweeping import SweepStep, too_much
from wslgpud.advise.guard.usage import CardUse, MemoryLeft, RunStats, VramWatch
from wslgpud.cli import app, guard
from wslgpud.cli import stress as stress_screen
from wslgpud.config import Config, Stress
from wslgpud.host import Host
from wslgpud.model import FindingKind
from wslgpud.store.records import stress_from_json, stress_to_json
from wslgpud.stress.comparison import by_key, differences, judged, level_of, remark
from wslgpud.stress.comparison import night as last_night
from wslgpud.stress.conditions import obstacles, reason_to_leave
from wslgpud.stress.result import EXPLAINED, LEFT, Frame, WorkerOutput, digest
from wslgpud.stress.stress_run import PASSES
from wslgpud.stress.telemetry import Recent
from wslgpud.words import Message, say

pytestmark = pytest.mark.usefixtures("without_torch")

GIB = 1 << 30
#: what only these tests call their own
NAMES = ("NVIDIA GeForce RTX 5070 Ti", "make", "cc1plus", "train.py", "flock", "KV", "QLoRA", "LoRA", "MoE", "root")


@pytest.fixture(autouse=True)
def chinese():
    words.use("zh")
    yield
    words.use("en")


def english_in(said: str) -> list[str]:
    return latin_words(said, NAMES)


@pytest.fixture
def shown(monkeypatch, capsys):
    def show(draw, *arguments, **options) -> str:
        monkeypatch.setenv("COLUMNS", "200")
        draw(*arguments, **options)
        return capsys.readouterr().out

    return show


def whole_run():
    """A run of which everything is known, and everything went wrong."""
    lines = [
        {"event": "begin", "free": 14 * GIB, "total": 15 * GIB, "torch": "2.13.0", "cuda": "13.0"},
        {"event": "rung", "target": 2 * GIB, "outcome": "refused", "why": "CUDA out of memory"},
        {"event": "rung", "target": 14 * GIB, "outcome": "too large"},
        {"event": "rung", "target": GIB, "outcome": "ok", "actual": GIB, "allocate_seconds": 0.1, "write_seconds": 0.1},
        {"event": "filled", "bytes": 10 * GIB},
        *(
            {"event": "speed", "sweep": 2, "index": n, "bytes": 256 * MIB, "write": s, "change": s, "read": s}
            for n, s in enumerate([0.001] * 30 + [0.1] * 2 + [0.0015])
        ),
        *(
            {"event": "pattern", "name": name, "verified": 9 * GIB, "checks": 1, "bad_words": 3, "seconds": 1.0}
            for name in PASSES["nightly"]
        ),
        {
            "event": "bad",
            "pattern": "walking",
            "chunk": 3,
            "words": 2,
            "bits": {"7": 2},
            "flips": {"1": 2},
            "samples": [{"word": 5, "expected": "0", "got": "1", "again": "1", "stuck": "1"}],
        },
        *({"event": "phase", "phase": name, "seconds": 0.5} for name in PHASES),
        {"event": "end", "outcome": "left", "why": "taken", "facts": {"taken_bytes": 500 * MIB}},
    ]
    key = {"driver": "576.88", "mode": "nightly", "engine": "1", "wsl": "yes", "reserve_bytes": str(GIB)}
    run = digest(WorkerOutput(lines, hung_pid=7), Frame(1.7e9, gpu(), key, gpu(used_bytes=3 * GIB)))
    more = {
        "temperature_max_celsius": 70,
        "power_max_watts": 300,
        "memory_clock_hertz": 14e9,
        "slowed_ratio": 0.1,
        "ecc_corrected": 2,
        "ecc_uncorrected": 1,
        "peak_bandwidth": 896e9,
        "shared_grown_bytes": GIB,
    }
    return replace(run, values={**run.values, **more})


class TestStress:
    def test_one_run_with_all_its_rows(self, shown) -> None:
        said = shown(stress_screen.print_run, stress_from_json(stress_to_json(whole_run())), rows=True)

        assert english_in(said) == []
        assert "个字出错" in said

    def test_the_history_and_what_is_to_be_said_of_each_night(self, shown) -> None:
        nights = [night(n) for n in range(9)]
        worse = judged(night(9, write_median=600e9, usable_bytes=9000 * MIB, memory_clock_hertz=9e9), nights)
        other = [night(n, driver="581.15") for n in (10, 11, 12)]
        news = judged(other[-1], [*nights, *other[:-1]])
        skipped = [night(13, verdict=verdict) for verdict in ("skipped", "left", "failed")]
        runs = [*nights, worse, *other[:-1], news, *skipped]
        said = shown(stress_screen.print_history, list(enumerate(runs)))
        columns = by_key(runs)
        compared = shown(stress_screen.print_differences, list(columns), differences(columns))

        assert worse.findings
        assert news.findings
        assert english_in(said + compared) == []
        assert "写带宽" in said
        assert "写带宽" in compared

    def test_nothing_to_show_and_nothing_to_compare(self, shown) -> None:
        said = shown(stress_screen.print_history, []) + shown(stress_screen.print_differences, [], [])

        assert english_in(said) == []

    def test_a_bar_while_it_goes_on(self, capsys) -> None:
        said: list[str] = []
        for phase in PHASES:
            line = {"event": "beat", "phase": phase, "verified": 84 * GIB}
            stress_screen._show_line(lambda *shown: said.append(shown[2]), line)

        assert english_in(" ".join(said)) == []
        assert "84 GiB" in said[0]

    def test_why_a_run_does_not_begin_and_why_it_leaves(self) -> None:
        samples = [
            gpu(utilization_ratio=0.9, used_bytes=n * GIB, free_bytes=GIB, temperature_celsius=99) for n in range(4)
        ]
        program = ["python3 train.py (pid 42)"]
        busy = obstacles(Stress(reserve_bytes=GIB), samples, holders=program, on_battery=True, hung_since_boot=True)
        recent = Recent()
        recent.last_jump_mono = recent.last_error_mono = 0.0
        found = [*busy, *obstacles(Stress(), [])]
        found += recent.unrest(30.0)
        found += [reason_to_leave(["a (pid 1)"]), reason_to_leave(waiting=True), reason_to_leave(gpu_errors=True)]
        found += [reason_to_leave(silent_seconds=20.0)]
        found += [Message(template) for template in (*EXPLAINED.values(), *LEFT.values())]

        assert [english_in(words.t("{said}", said=one)) for one in found] == [[]] * len(found)

    def test_how_the_last_night_went_and_what_is_wrong_with_a_card(self) -> None:
        runs = [night(0), *(night(n, verdict="skipped", reason=say("the GPU does not answer")) for n in (2, 9))]
        said = [last_night(whole_run()), remark(whole_run()), level_of(runs)[1], level_of([whole_run()])[1]]

        assert [english_in(words.current().text(one)) for one in said] == [[]] * 4

    @pytest.mark.parametrize("kind", ["stress", "guard"])
    def test_what_runs(self, kind: FindingKind) -> None:
        document = {
            "kind": kind,
            "what": "make",
            "elapsed_seconds": 9.0,
            "left_seconds": 700.0,
            "done_ratio": 0.3,
            "peak_bytes": GIB,
            "waiting": 3,
        }
        said = [words.current().text(headline({**document, "phase": phase})) for phase in PHASES]

        assert [english_in(one) for one in said] == [[]] * len(said)


class TestGuard:
    def test_what_a_run_took(self, capfd, tmp_path: Path) -> None:
        account = RunStats(
            3700.0,
            137,
            peak_bytes=9 * GIB,
            least_available_bytes=GIB,
            total_bytes=24 * GIB,
            pauses=3,
            paused_seconds=200.0,
            oom_kills=2,
            biggest=("cc1plus", 3 * GIB),
            saved=[("train.py (pid 7)", 30.0)],
            cards=[CardUse(0, "GPU-0", 16 * GIB, GIB, 2 * GIB, 5 * GIB)],
        )
        guard._sum_up(account, GuardedCommand(["make"], {}), tmp_path)
        guard._sum_up(replace_account(account), GuardedCommand(["make"], {}), tmp_path)
        said = capfd.readouterr().err

        assert english_in(said.replace("[guard]", "").replace(str(tmp_path), "")) == []
        assert "内存峰值 9.0 GiB" in said
        assert "1:01:40 后" in said

    def test_the_line_below_while_it_runs(self) -> None:
        vram = VramWatch(Host(), Config())
        vram._cards = {0: CardUse(0, "GPU-0", 16 * GIB, 0, GIB, 2 * GIB)}
        run = GuardedRun(GuardedCommand(["make"], {}, 3600.0), Host(), None, vram)
        run._stopped = {(1, 1): None, (2, 1): None}
        line = guard._line(RunStats(seconds=75.0, peak_bytes=GIB), MemoryLeft(3 * GIB, 9 * GIB), run, vram)

        assert english_in(line.removeprefix("[guard]")) == []
        assert "0:01:15 / 1:00:00" in line


def replace_account(account: RunStats) -> RunStats:
    """The same run, which ended before anybody saw it, by its time limit."""
    return replace(account, peak_bytes=None, timed_out=True)


class TestFitAndSweep:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("1B",),
            ("7B", "--mode", "training", "--batch", "4", "--checkpointing"),
            ("7B", "--mode", "lora", "-p", "int4"),
            ("70B", "--mode", "training", "--optimizer", "sgd"),
            ("7B", "-p", "fp32", "--batch", "4"),
            ("huge",),
            ("7B", "--mode", "sleeping"),
            ("7B", "--mode", "training", "-p", "int4"),
            ("7B", "--mode", "lora", "-p", "q4_k_m"),
            ("7B", "--usable", "much"),
            ("/no",),
        ],
    )
    def test_whether_a_model_fits(self, arguments) -> None:
        env = {"COLUMNS": "200", "WSLGPUD_ALERTS__LANGUAGE": "zh"}
        usable = () if "--usable" in arguments else ("--usable", "14.5GiB")
        done = CliRunner().invoke(app, ["fit", *arguments, *usable], env=env)

        assert done.output
        words_of_options = (*arguments, *get_args(Mode), *get_args(Optimizer), *PRECISIONS)
        assert latin_words(done.output, (*NAMES, *words_of_options)) == []

    def test_which_value_still_fits(self, capsys) -> None:
        steps = [SweepStep("1", 0, 1.0, GIB, GIB), SweepStep("2", 0, 2.0, None, 2 * GIB)]
        end = too_much(steps, "64", 50 * GIB, 16 * GIB)
        guard._print_steps(steps, words.current().text(end))
        said = capsys.readouterr()

        assert english_in(said.out + said.err) == []
