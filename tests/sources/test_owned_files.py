"""Files of a process that it can make its readers wait for: titles and libraries, never a figure."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from wslgpud.config import Config
from wslgpud.host import Host, NoData, SourceError
from wslgpud.sources.processes import ProcessSource
from wslgpud.sources.procfs import MAX_HANGING, Hangs, OwnedFiles

#: long enough for a busy machine to start a thread, where an answer comes at all
PATIENT, SHORT = 60.0, 0.05


class Stuck(Host):
    """A machine some of whose processes hold their own lock until they are told to let go."""

    def __init__(self, owners: dict[int, int], hanging: set[int] = frozenset()) -> None:
        super().__init__()
        self.owners, self.hanging = owners, hanging
        self.let_go = threading.Event()
        self.asked: list[str] = []
        #: whose readers wait
        self.waiting: set[str] = set()

    def names(self, path: str, most: int | None = None) -> list[str]:
        return [str(pid) for pid in self.owners] if path == "/proc" else []

    def read(self, path: str) -> str:
        if path == "/proc/meminfo":
            return "MemTotal: 1000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
        pid, _, name = path.removeprefix("/proc/").partition("/")
        if not pid.isdecimal() or int(pid) not in self.owners:
            raise NoData("there is no {path}", path=path)
        if name == "stat":
            return f"{pid} (python3) S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 {1000 + int(pid)} 9999999999 50000\n"
        if name == "status":
            uid = self.owners[int(pid)]
            return f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGroups:\t{uid}\n"
        raise SourceError("no {path}", path=path)

    def head(self, path: str, most_bytes: int) -> str:
        self.asked.append(path)
        if int(path.split("/")[2]) in self.hanging:
            self.waiting.add(path)
            self.let_go.wait()
            self.waiting.remove(path)
        return "/usr/bin/python3\0train.py\0"

    def link(self, path: str) -> str | None:
        return None


@pytest.fixture
def stuck() -> Iterator[type[Stuck]]:
    made: list[Stuck] = []

    def make(*arguments: object) -> Stuck:
        made.append(Stuck(*arguments))
        return made[-1]

    yield make
    for host in made:
        host.let_go.set()


def test_a_process_that_stalls_readers_is_waited_for_only_once(stuck) -> None:
    host = stuck({7: 1000, 8: 1000, 9: 1001}, {7})
    files = OwnedFiles(host, SHORT)

    with pytest.raises(Hangs, match="/proc/7/cmdline does not answer"):
        files.text(7, "cmdline")
    for pid in (7, 8):  # another one of its user might do the same
        with pytest.raises(Hangs, match="a process of its user keeps readers waiting"):
            files.text(pid, "maps")
    assert host.asked == ["/proc/7/cmdline"]
    assert len(host.waiting) == 1


def test_other_users_programs_are_still_told_by_their_titles(stuck) -> None:
    host = stuck({7: 1000, 9: 1001}, {7})
    with pytest.raises(Hangs):
        OwnedFiles(host, SHORT).text(7, "cmdline")

    assert OwnedFiles(host, PATIENT).text(9, "cmdline") == "/usr/bin/python3\0train.py\0"


def test_once_it_lets_go_it_is_read_like_any_other(stuck) -> None:
    host = stuck({7: 1000}, {7})
    files = OwnedFiles(host, SHORT)
    assert files.optional(7, "cmdline") == ""
    host.let_go.set()
    while host.waiting:
        time.sleep(0.001)

    assert OwnedFiles(host, PATIENT).text(7, "cmdline")


def test_many_users_together_cost_no_more_than_a_few_threads(stuck) -> None:
    owners = {pid: 1000 + pid for pid in range(1, 2 * MAX_HANGING)}
    host = stuck(owners, set(owners))
    files = OwnedFiles(host, 0.001)

    assert [files.optional(pid, "maps") for pid in owners] == [""] * len(owners)
    assert len(host.asked) == MAX_HANGING


def test_one_that_has_ended_is_gone(stuck) -> None:
    with pytest.raises(NoData):
        OwnedFiles(stuck({}), PATIENT).text(7, "cmdline")


def test_the_process_list_does_not_wait_for_a_stalling_stranger(stuck) -> None:
    host = stuck({7: 1000, 8: 1000, 9: 1001}, {7, 8})
    source = ProcessSource(host, Config())
    source._files = OwnedFiles(host, SHORT)
    first = {p.pid: (p.name, p.rss_bytes > 0, p.uid) for p in source.read().processes or ()}

    assert first == {7: ("python3", True, 1000), 8: ("python3", True, 1000), 9: ("python3", True, 1001)}
    assert len({path.split("/")[2] for path in host.asked} & {"7", "8"}) == 1, "of one user only one is tried"
