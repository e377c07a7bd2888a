"""The tree of processes, and by how much each has grown since an earlier scan. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from wslgpud.brake.protected_programs import is_protected, is_shell

ProcessKey = tuple[int, int]


class ScannedProcess(NamedTuple):
    """A process as a scan of /proc shows it.

    ``uid`` is None where it has rights of more than one user; ``name`` is what it calls itself, ``program`` the name of
    the file that it runs, empty where that is hidden: neither is fit to be shown. ``memory_bytes`` is its own memory in
    RAM and swap, ``shared_bytes`` what it has mapped of files in RAM, which others may have mapped as well.
    ``stopped``: by somebody, already. ``terminal`` tells whether one controls it.
    """

    pid: int
    start_ticks: int
    parent: int
    uid: int | None
    name: str
    memory_bytes: int
    program: str = ""
    cgroup: str = ""
    stopped: bool = False
    shared_bytes: int = 0
    terminal: bool = False

    @property
    def key(self) -> ProcessKey:
        """The identity that survives the reuse of a pid."""
        return self.pid, self.start_ticks

    @property
    def is_shell(self) -> bool:
        """Whether it reads commands: what it has started is somebody's job, it itself is not."""
        return is_shell(self.name, self.program)

    @property
    def is_protected(self) -> bool:
        """Whether it is never paused, whoever started it."""
        return self.pid <= 1 or is_protected(self.name, self.program)

    def with_shared(self) -> ScannedProcess:
        """Return it with the shared memory counted as its own."""
        return self._replace(memory_bytes=self.memory_bytes + self.shared_bytes)


class ProcessTree:
    """All processes of a scan, and by how much each has grown since an earlier one."""

    def __init__(
        self, now: Iterable[ScannedProcess], before: Mapping[ProcessKey, int], ours: Collection[int] = ()
    ) -> None:
        """Take the processes of ``now``, what memory they had ``before``, and the pids of those that are part of us."""
        self.by_pid = {one.pid: one for one in now}
        self._before, self._ours = before, ours
        self.children: defaultdict[int, list[ScannedProcess]] = defaultdict(list)
        for one in self.by_pid.values():
            self.children[one.parent].append(one)

    def growth_bytes(self, one: ScannedProcess) -> int:
        """Return what it has taken since: of one that came meanwhile all that it has.

        Who was forked shares its parent's memory until it writes to it: that is no growth.
        """
        before = self._before.get(one.key)
        if before is None:
            parent = self.by_pid.get(one.parent)
            forked = parent is not None and parent.name == one.name and parent.program == one.program
            before = min(one.memory_bytes, parent.memory_bytes) if forked and parent is not None else 0
        return max(0, one.memory_bytes - before)

    def subtree(self, root: ScannedProcess) -> Iterator[ScannedProcess]:
        """Yield a process and all below it, parents first."""
        seen, waiting = {root.pid}, deque([root])
        while waiting:
            yield (one := waiting.popleft())
            fresh = [child for child in self.children.get(one.pid, ()) if child.pid not in seen]
            seen.update(child.pid for child in fresh)
            waiting.extend(fresh)

    def may_be_paused(self, one: ScannedProcess, users: Collection[int]) -> bool:
        """Tell whether it is one of the users' own programs, and neither protected nor a part of us."""
        return one.uid in users and not (one.pid in self._ours or one.is_shell or one.is_protected)

    def members(
        self, roots: Sequence[ScannedProcess], users: Collection[int], *, stopped: bool = False
    ) -> tuple[ScannedProcess, ...]:
        """Return what is paused of these and all below them: no shells, and who is stopped already only if asked."""
        found: dict[int, ScannedProcess] = {}
        for root in roots:
            cut: set[int] = set()
            for one in self.subtree(root):
                # Another user's program among them, or a protected one, has a life of its own.
                foreign = one.uid not in users or one.is_protected or one.pid in self._ours
                if foreign or one.parent in cut:
                    cut.add(one.pid)
                elif not one.is_shell and (stopped or not one.stopped):
                    found.setdefault(one.pid, one)
        return tuple(found.values())
