"""Of thousands of processes only a few are read each time, and still none grows or appears unseen."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.serve.support import HandClock
from tests.sources.test_processes import MIB, process, stat
from wslgpud.config import Config, Sampling
from wslgpud.host import Host, RecordedHost
from wslgpud.sources.processes import ProcessSource, programs_bytes

MANY, SCAN_SECONDS = 600, 5.0


def meminfo(anon_bytes: int) -> str:
    return f"MemTotal: 900000 kB\nAnonPages: {anon_bytes // 1024} kB\nMapped: 0 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"


class Crowd:
    """A machine of sleeping processes, whom somebody counts that looks at them."""

    def __init__(self, host: RecordedHost) -> None:
        self.host, self.clock = host, HandClock()
        host.clock = self.clock
        self.source = ProcessSource(host, Config())
        self.looked: list[int] = []
        read = host.read

        def counted(path: str) -> str:
            if path.endswith("/stat"):
                self.looked.append(int(path.split("/")[2]))
            return read(path)

        host.read = counted  # type: ignore[method-assign]

    def put(self, path: str, text: str) -> None:
        file = Path(self.host.path(path))
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    def end(self, pid: int) -> None:
        shutil.rmtree(self.host.path(f"/proc/{pid}"))

    def scan(self) -> dict[int, int]:
        """Return the memory of the listed processes, by pid."""
        self.clock.advance(SCAN_SECONDS)
        self.looked.clear()
        return {p.pid: p.rss_bytes for p in self.source.read().processes or ()}


@pytest.fixture
def crowd(machine: Callable[..., RecordedHost]) -> Crowd:
    files = {"/proc/meminfo": meminfo(0)}
    for pid in range(1, MANY + 1):
        files |= process(pid, f"sleeper{pid}", pid * 4096)
    crowd = Crowd(machine(files))
    for _ in range(15):
        crowd.scan()
    return crowd


def test_those_that_sleep_are_looked_at_once_a_minute(crowd: Crowd) -> None:
    listed = Config().sampling.processes_max
    seen: set[int] = set()
    for _ in range(13):
        crowd.scan()
        assert len(crowd.looked) <= MANY / 12 + listed + 1
        seen |= set(crowd.looked)
    assert seen == set(range(1, MANY + 1))


def test_those_that_are_listed_are_looked_at_each_time(crowd: Crowd) -> None:
    crowd.put(f"/proc/{MANY}/stat", stat(MANY, f"sleeper{MANY}", 30 * MIB))
    assert crowd.scan()[MANY] == 30 * MIB


def test_one_that_grows_is_seen_at_the_next_scan(crowd: Crowd) -> None:
    crowd.put("/proc/7/stat", stat(7, "sleeper7", 40 * MIB))
    crowd.put("/proc/meminfo", meminfo(40 * MIB))
    assert crowd.scan()[7] == 40 * MIB


@pytest.mark.parametrize(("growth", "seen"), [(8 * MIB, True), (8 * MIB - 4096, False)])
def test_growth_of_8_mib_that_nothing_explains_has_all_looked_at(crowd: Crowd, growth: int, seen: bool) -> None:
    crowd.put("/proc/meminfo", meminfo(growth))
    crowd.scan()
    assert (len(set(crowd.looked)) == MANY) is seen


def test_one_that_grows_little_by_little_is_seen_soon(crowd: Crowd) -> None:
    seen = [0]
    for size in range(1, 20):
        crowd.put("/proc/7/stat", stat(7, "sleeper7", size * MIB))
        crowd.put("/proc/meminfo", meminfo(size * MIB))
        seen.append(crowd.scan().get(7, 0) // MIB)
        assert size - seen[-1] <= 8


def test_growth_that_the_end_of_another_hides_is_seen(crowd: Crowd) -> None:
    crowd.put(f"/proc/{MANY}/stat", stat(MANY, f"sleeper{MANY}", 40 * MIB))
    crowd.put("/proc/meminfo", meminfo(40 * MIB))
    crowd.scan()
    crowd.end(MANY)
    crowd.put("/proc/7/stat", stat(7, "sleeper7", 40 * MIB))

    assert crowd.scan()[7] == 40 * MIB


def test_a_new_process_is_seen_at_once(crowd: Crowd) -> None:
    for path, text in process(MANY + 1, "sh", 20 * MIB).items():
        crowd.put(path, text)
    assert crowd.scan()[MANY + 1] == 20 * MIB

    crowd.put(f"/proc/{MANY + 1}/stat", stat(MANY + 1, "ninja", 21 * MIB))
    assert crowd.scan()[MANY + 1] == 21 * MIB


def test_a_process_that_shows_only_its_folder_is_no_error(crowd: Crowd) -> None:
    Path(crowd.host.path(f"/proc/{MANY + 1}")).mkdir()  # as another user's do with hidepid=1

    assert [MANY + 1 in crowd.scan() for _ in range(2)] == [False, False]


def test_a_small_new_process_is_read_each_time_for_a_minute(crowd: Crowd) -> None:
    for pid in (MANY + 1, MANY + 2):
        for path, text in process(pid, "sh", 4096).items():
            crowd.put(path, text)
    crowd.scan()
    crowd.end(MANY + 2)
    looked = []
    for _ in range(13):
        crowd.scan()
        looked.append([pid for pid in crowd.looked if pid > MANY])
    ended, rest = looked[0], looked[1:]

    assert sorted(ended) == [MANY + 1, MANY + 2]
    assert rest[:10] == [[MANY + 1]] * 10
    assert rest[10:] == [[], []]


def test_without_the_kernels_hint_all_processes_are_read(crowd: Crowd) -> None:
    crowd.put("/proc/meminfo", "MemTotal: 900000 kB\nMemFree: 1 kB\n")
    crowd.scan()
    assert set(crowd.looked) == set(range(1, MANY + 1))


def test_what_programs_hold_is_in_ram_and_in_swap() -> None:
    assert programs_bytes({"AnonPages": "5", "Mapped": "3", "SwapTotal": "10", "SwapFree": "8"}) == 10 << 10
    assert programs_bytes({"AnonPages": "5", "Mapped": "3"}) == 8 << 10
    assert programs_bytes({"AnonPages": "5"}) is None


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    """A real process that grows by 300 MiB when it is told to."""
    program = "import sys; print(1, flush=True); input(); held = b'x' * (300 << 20); print(2, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def test_a_long_sleeping_process_is_seen_when_it_grows(sleeper: subprocess.Popen[str]) -> None:
    clock = HandClock()
    source = ProcessSource(Host(clock=clock), Config(sampling=Sampling(processes_max=100)))
    for _ in range(15):
        source.read()
        clock.advance(SCAN_SECONDS)
    assert sleeper.stdin is not None
    assert sleeper.stdout is not None
    sleeper.stdin.write("\n")
    sleeper.stdin.flush()
    sleeper.stdout.readline()

    assert sleeper.pid in {process.pid for process in source.read().processes or () if process.rss_bytes > 300 * MIB}
