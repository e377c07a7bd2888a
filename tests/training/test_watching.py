"""How the companion gets into a program, what it reads of the kernel and torch, and where it writes it."""

from __future__ import annotations

import importlib
import os
import pwd
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.daemons import eventually
from wslgpud.training import companion
from wslgpud.training.companion import Companion, Floors


class Optimizer:
    """Something that steps."""


def test_floors_are_kept_for_the_last_eight_blocks_of_each_size() -> None:
    floors = Floors()
    for step in range(1, 49_153):
        floors.add(step, 1000 + step, 5000 + step)

    sizes = [6, 24, 96, 384, 1536, 6144]
    assert floors.scales == [
        [[end, 1000 + end - size + 1, 1000 + end, 5000 + end] for end in range(49_152 - 7 * size, 49_153, size)]
        for size in sizes
    ]


@pytest.fixture
def importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of the program's own can be imported."""
    (tmp_path / "programs_module.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = sys.meta_path[:]
    yield
    assert sys.meta_path == before
    sys.modules.pop("programs_module", None)


@pytest.mark.usefixtures("importing")
def test_a_module_is_patched_as_soon_as_the_program_imports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    one = Companion()
    one.after_import("programs_module", lambda module: seen.append(module.VALUE))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    importlib.import_module("colorsys")
    assert seen == []
    module = importlib.import_module("programs_module")
    assert seen == [7]
    one.after_import("programs_module", seen.append)
    assert seen == [7, module]


@pytest.mark.usefixtures("importing")
def test_a_module_that_cannot_be_patched_is_loaded_all_the_same() -> None:
    Companion().after_import("programs_module", lambda module: module.missing)

    assert importlib.import_module("programs_module").VALUE == 7


def test_a_module_that_the_program_lacks_is_missing_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    Companion().after_import("no_such_module", print)

    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module")


def test_watching_twice_counts_each_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks: list[Any] = []
    torch = SimpleNamespace(register_optimizer_step_post_hook=hooks.append)
    monkeypatch.setitem(sys.modules, "torch.optim.optimizer", torch)
    monkeypatch.setattr(companion, "COMPANION", Companion())
    calls: list[tuple[str, float | None]] = []
    one = companion.watch()
    assert companion.watch(lambda level, seconds: calls.append((level, seconds))) is one
    one._warned = ("warning", 3.0)
    one._warn()

    assert hooks == [one.stepped]
    assert calls == [("warning", 3.0)]


def test_a_second_optimizer_is_watched_by_the_same_thread() -> None:
    def watching() -> int:
        return sum(thread.name == "wslgpud" for thread in threading.enumerate())

    one, before = Companion(), watching()
    for _ in range(3):
        one.stepped(Optimizer())

    assert (one.steps, watching()) == (3, before + 1)
    one.close()


class Seconds:
    """The time and the daemon as one companion sees them; threads of other tests see the usual time and no daemon.

    ``answers`` are the daemon's, ``steps`` those made so far, both by the second from which on they hold.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        one: Companion,
        answers: dict[int, dict[str, Any] | None],
        steps: dict[int, int] | None = None,
    ) -> None:
        self._one, self._answers, self._steps = one, answers, steps or {}
        self._answer: dict[str, Any] | None = None
        self._second, self._thread = 0, threading.current_thread()
        self.counted = list[int]()
        self.told, self.warned = list[tuple[int, int, int]](), list[tuple[int, str, float | None]]()
        self.paces = dict[int, float]()
        for name, stand_in in (("time", self), ("_children", self._count)):
            monkeypatch.setattr(companion, name, stand_in)
        one._line = self  # type: ignore[assignment]  # acts like one
        one._tell()

    @property
    def _mine(self) -> bool:
        return threading.current_thread() is self._thread

    def monotonic(self) -> float:
        return 1000.0 + self._second if self._mine else time.monotonic()

    def sleep(self, seconds: float) -> None:
        if not self._mine:
            time.sleep(seconds)
            return
        if self._one._warned is not None:
            self.warned.append((self._second, *self._one._warned))
            self._one._warned = None
        self._second += int(seconds)
        self._answer = self._answers.get(self._second, self._answer)
        self._one.steps = self._steps.get(self._second, self._one.steps)
        if self._second == 40:
            self._one._pid = -1

    def connect(self) -> bool:
        return self._answer is not None

    @property
    def answer(self) -> dict[str, Any]:
        return self._answer or {}

    def close(self) -> None:
        """Do nothing."""

    def _count(self) -> list[int]:
        if self._mine:
            self.counted.append(self._second)
        return []

    def tell(self, document: dict[str, Any]) -> None:
        self.told.append((self._second, document["steps"], document["began_mono"]))
        self.paces[self._second] = document.get("step_seconds", 0.0)


def test_a_missing_daemon_is_sought_again_every_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    line, now, sought = companion.Announcement(["/nowhere"]), [0.0], list[float]()

    def missing(folder: str) -> None:
        sought.append(now[0])
        raise FileNotFoundError(folder)

    monkeypatch.setattr(companion, "_connected", missing)
    monkeypatch.setattr(companion, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for second in range(12):
        now[0] = float(second)
        assert not line.connect()

    assert sought == [0.0, 5.0, 10.0]


def test_workers_are_counted_every_fifteen_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Seconds(monkeypatch, Companion(), {}).counted == [1, 16, 31]


def test_a_daemon_is_told_after_steps_and_every_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seconds(monkeypatch, Companion(), {8: {}, 20: None}, {9: 3, 15: 7, 21: 9})

    assert seen.told == [(8, 0, 1000), (9, 3, 1000), (14, 3, 1000), (15, 7, 1000)]


def test_the_pace_is_that_of_as_many_seconds_as_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companion, "PACES", 4)
    ever_faster = {second: second if second <= 20 else 2 * second - 20 for second in range(1, 40)}

    paces = Seconds(monkeypatch, Companion(), {1: {}}, ever_faster).paces
    assert [paces[second] for second in (20, 21, 22, 23)] == [1.0, 3 / 4, 3 / 5, 3 / 6]


def test_each_warning_level_is_passed_on_once_per_alert(monkeypatch: pytest.MonkeyPatch) -> None:
    warned = [["warning", 40.0], ["critical", 3.0], ["warning", 8.0], ["critical", 2.0], None, ["warning", 9.0]]
    steps = {second: second for second in range(1, 40)}
    answers: dict[int, dict[str, Any] | None] = {
        at: {"warned": told} for at, told in zip((1, 10, 11, 13, 15, 18), warned, strict=True)
    }

    assert Seconds(monkeypatch, Companion(), answers, steps).warned == [
        (1, "warning", 40.0),
        (10, "critical", 3.0),
        (18, "warning", 9.0),
    ]


def test_a_daemon_that_does_not_answer_gives_no_all_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, warned = {second: second for second in range(1, 40)}, {"warned": ["warning", 40.0]}

    assert len(Seconds(monkeypatch, Companion(), {1: warned, 5: {}, 9: warned}, steps).warned) == 1


def cuda(cards: int = 1, peak: int = 1, uuid: str | None = "GPU-1", **more: Any) -> SimpleNamespace:
    """A torch with cards, each with four bytes in use."""
    stats = {name: {"all": {"current": 4, "peak": peak}} for name in ("allocated_bytes", "reserved_bytes")}
    all_stats = {**stats, "inactive_split_bytes": {"all": {"current": 0}}, "num_alloc_retries": 0, "num_ooms": 0}
    told = {} if uuid is None else {"uuid": uuid}
    return SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: cards,
        memory_stats_as_nested_dict=lambda card: all_stats if peak else {},
        get_device_properties=lambda card: SimpleNamespace(**({"uuid": f"{uuid}{card}"} if told else {})),
        **more,
    )


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (cuda(), {"ram", "GPU-10"}),
        (cuda(uuid="ab-"), {"ram", "GPU-ab-0"}),
        (cuda(uuid=None), {"ram", ""}),
        (cuda(2), {"ram", "GPU-10", "GPU-11"}),
        (cuda(7), {"ram", *(f"GPU-1{card}" for card in range(companion.MAX_CARDS))}),
        (cuda(peak=0), {"ram"}),
        (None, {"ram"}),
    ],
)
def test_every_card_in_use_is_read_and_named_as_nvml_names_it(
    monkeypatch: pytest.MonkeyPatch, found: SimpleNamespace | None, names: set[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=found))
    one = Companion()
    one._read()

    assert one._memory.keys() == names


def test_a_torch_that_has_not_touched_its_cards_is_not_made_to(monkeypatch: pytest.MonkeyPatch) -> None:
    untouched = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=untouched))
    one = Companion()
    one._read()

    assert one._memory.keys() == {"ram"}
    assert companion._pinned() == {}


def test_a_worker_is_a_child_with_memory_of_its_own() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            folder = Path("/proc", str(child.pid))
            eventually(lambda: (folder / "comm").read_text() == "sleep\n", "the program")
            child.send_signal(signal.SIGSTOP)  # else its memory still changes while it starts
            eventually(lambda: (folder / "stat").read_text().split()[2] == "T", "its stop")
            (kib,) = re.findall(r"Pss_Anon: +(\d+) kB", (folder / "smaps_rollup").read_text())

            assert child.pid in companion._children()
            assert companion._proportional_bytes(child.pid) == int(kib) * 1024 > 0
        finally:
            child.kill()
    assert companion._proportional_bytes(child.pid) == 0
    assert child.pid not in companion._children()


def test_ram_includes_the_workers_and_excludes_shared_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companion, "_contents", lambda path: b"90 10 3 1 0 5 0")
    one = Companion()
    one._read()
    assert one._memory["ram"]["used"] == 7 * os.sysconf("SC_PAGE_SIZE")
    one._workers_bytes = 5
    one._read()

    assert one._memory["ram"]["used"] == 7 * os.sysconf("SC_PAGE_SIZE") + 5
    assert one._memory["ram"]["peak"] == 0, "unknown"


def test_the_usual_pace_needs_half_a_minute_of_readings() -> None:
    def paced(readings: int, steps: int) -> dict[str, Any]:
        return Companion()._document(1.5, [(10.0 + second, second * steps) for second in range(readings)])

    assert paced(2, 4)["step_seconds"] == 0.25
    assert "step_seconds" not in paced(2, 0)
    assert "usual_step_seconds" not in paced(30, 4)
    assert paced(31, 4)["usual_step_seconds"] == 0.25
    assert paced(2, 4)["began_mono"] == 1.5


def test_memory_is_read_at_most_five_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    one, optimizer, now, read = Companion(), object(), [0.0], list[float]()
    monkeypatch.setattr(companion, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(one, "_note", lambda *_: read.append(now[0]))
    one._of, one._daemon_reads = (lambda: optimizer), True
    for sixteenth in range(160, 192):
        now[0] = sixteenth / 16
        one.stepped(optimizer)

    assert read == [10.0, 10.25, 10.5, 10.75, 11.0, 11.25, 11.5, 11.75]


def test_of_many_workers_the_first_64_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    children = " ".join(map(str, range(1, 41))).encode()
    monkeypatch.setattr(companion, "_contents", lambda path: children)
    monkeypatch.setattr(os, "listdir", lambda path: ["1", "2"])

    assert companion._children() == [*range(1, 41), *range(1, 25)]


def test_daemons_of_root_the_service_and_ones_own_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    def accounts(name: str) -> SimpleNamespace:
        if name != "wslgpud":
            raise KeyError(name)
        return SimpleNamespace(pw_uid=990)

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(pwd, "getpwnam", accounts)
    assert set(companion._trusted.__wrapped__()) == {0, 990, 1000}
    monkeypatch.setattr(companion, "_SERVICE", "nobody has it")
    assert set(companion._trusted.__wrapped__()) == {0, 1000}
