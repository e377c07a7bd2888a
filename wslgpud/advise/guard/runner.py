"""Runs a command under watch, to its end, its time limit or the user's word."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from wslgpud.advise.guard import plan, tree
from wslgpud.advise.guard.holding import Holding
from wslgpud.advise.guard.memory import Room, room
from wslgpud.advise.guard.plan import Process
from wslgpud.advise.guard.relay import Relay
from wslgpud.advise.guard.rescue import Rescue
from wslgpud.advise.guard.watch import Account, Shortage, VramWatch
from wslgpud.host import Host

#: A compiler takes hundreds of megabytes a second: with --pause one look must come before the next gigabyte.
LOOK_SECONDS, PAUSE_LOOK_SECONDS = 0.5, 0.1
#: A look is followed by at least so many times its own length.
_REST = 4
#: A run that is over by then has been looked at a few times only, or never.
_BRIEF_SECONDS = 2 * LOOK_SECONDS
#: Counters of memory lag behind by some pages for each processor.
_SURELY = 1.25
#: Between the word and the deed: time to remove half-written files.
GRACE_SECONDS = 10.0
_SAVE_AGAIN_SECONDS = 300.0
#: What timeout(1) ends with.
TIMED_OUT = 124
#: To all of the tree, as a terminal does it; the rest is between the user and the program.
_TO_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_TO_COMMAND = (signal.SIGUSR1, signal.SIGUSR2)
#: Whoever must die, let it be the build: not WSL's init, and not the editor with unsaved work.
_OOM_SCORE = 300


@dataclass(frozen=True, slots=True)
class Order:
    """What to run and how; ``compiler_bytes`` is what one compiler is expected to take at most."""

    command: Sequence[str]
    environment: Mapping[str, str]
    timeout_seconds: float | None = None
    pause: bool = False
    save_signal: signal.Signals | None = None
    compiler_bytes: int = plan.CXX_BYTES


class Run:
    """One run of one command. Not for two threads; signals are taken from when ``to_end`` begins."""

    def __init__(
        self,
        order: Order,
        host: Host,
        relay: Relay,
        vram: VramWatch,
        show: Callable[[Account, Room, Run], None] = lambda *_: None,
    ) -> None:
        """Nothing runs yet; ``show`` is called at every look."""
        self.order, self.host, self.account = order, host, Account()
        #: all that the command has started, as last seen
        self.processes: Sequence[Process] = ()
        self._relay, self._vram, self._show = relay, vram, show
        self._shortage = Shortage()
        self._stopped: dict[tuple[int, int], Process] = {}
        self._seen: dict[tuple[int, int], int] = {}
        self._ending_since: float | None = None
        self._saved_at = float("-inf")
        self._looked_at = self._started_at = 0.0
        self._child: int | None = None
        self._rescue = Rescue()
        self._holding = Holding(host)
        self._usage: resource.struct_rusage | None = None

    @property
    def stopped(self) -> int:
        """How many compilers wait now."""
        return len(self._stopped)

    def to_end(self) -> Account:
        """Run the command and return what it took.

        Raises:
            OSError: no shell could be started.
        """
        adjust = f"echo {_OOM_SCORE} >/proc/self/oom_score_adj 2>/dev/null"
        line = ["/bin/sh", "-c", f'{adjust}; exec "$@"', "sh", *self.order.command]
        before, own_bytes = room(self.host), tree.most_resident_bytes(self.host)
        self._started_at = self._looked_at = self.host.clock.mono()
        with self._signals_pass() as arrived:
            process = subprocess.Popen(
                line, env=dict(self.order.environment), stdout=self._relay.stdout, stderr=self._relay.stderr
            )
            self._child = process.pid
            self._relay.started()
            try:
                self._watch(process, arrived)
            finally:
                self._let_go()
                self._rescue.close()
        self._drain()
        account = self.account
        account.seconds = self.host.clock.mono() - self._started_at
        code = process.returncode
        account.code = TIMED_OUT if account.timed_out else 128 - code if code < 0 else code
        if account.seconds < _BRIEF_SECONDS:
            account.close_brief(self._largest_bytes(own_bytes))
        after = room(self.host)
        if after.total_bytes == before.total_bytes:  # counted by the same group
            account.oom_kills = after.oom_kills - before.oom_kills
        account.vram_peak_bytes = dict(self._vram.peak_bytes)
        account.vram_start_bytes = dict(self._vram.start_bytes)
        account.vram_taken_bytes = self._vram.taken_bytes(account.vram_peak_bytes)
        return account

    def _watch(self, process: subprocess.Popen[bytes], arrived: list[signal.Signals]) -> None:
        most = PAUSE_LOOK_SECONDS if self.order.pause else LOOK_SECONDS
        due = 0.0
        while True:
            now = self.host.clock.mono()
            if now >= due:
                processes = self._look(now)
                # What is soon over must be seen as well. On a slow machine looking must not take the time
                # that the build needs.
                every = min(most, (now - self._started_at) / 2)
                due = now + max(every, _REST * (self.host.clock.mono() - now))
                if self._ended(process) and (self._ending_since is None or not processes):
                    return
            while arrived:
                self._pass_signal(arrived.pop(0), process)
            if (
                not self._relay.pump(max(0.0, min(due - self.host.clock.mono(), most)))
                and not self._relay.open
            ):
                # Nothing to wait on any more but the end and the clock.
                self._wait(process, max(0.01, due - self.host.clock.mono()))
            if self._ended(process):
                due = 0.0

    def _ended(self, process: subprocess.Popen[bytes]) -> bool:
        """Tell whether the command has ended; what it took goes with its entry in the table of processes."""
        if process.returncode is None:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode, self._usage = os.waitstatus_to_exitcode(status), usage
        return process.returncode is not None

    def _wait(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        """Wait so long, or until the command has ended; then it is still there to be asked what it took."""
        if self._ended(process):
            return
        handle = os.pidfd_open(process.pid)
        try:
            select.select([handle], [], [], seconds)
        finally:
            os.close(handle)

    def _largest_bytes(self, own_bytes: int | None) -> int | None:
        """Return the most that one process of the command had in RAM, None where the kernel does not tell.

        Until it loaded its program the command was a copy of us, which counts: nothing smaller is seen.
        https://man7.org/linux/man-pages/man2/getrusage.2.html
        """
        if self._usage is None or own_bytes is None:
            return None
        largest = self._usage.ru_maxrss << 10
        return largest if largest > _SURELY * own_bytes else None

    def _look(self, now: float) -> list[Process]:
        seconds = now - self._started_at
        processes = self._tree()
        left = room(self.host)
        self.account.note(seconds, left, processes, self._holding.now_bytes(processes))
        self._count_ended(processes)
        limit = self.order.timeout_seconds
        if limit is not None and seconds >= limit and self._ending_since is None:
            self.account.timed_out = True
            self._end_all(processes, signal.SIGTERM)
        elif self._ending_since is not None and now - self._ending_since >= GRACE_SECONDS:
            self._end_all(processes, signal.SIGKILL)
        elif self._ending_since is None:
            if self.order.pause:
                self._pause(processes, left, now)
            if self.order.save_signal is not None:
                self._ask_to_save(processes, left, seconds)
        self._looked_at = now
        self.processes = processes
        self._show(self.account, left, self)
        return processes

    def _tree(self) -> list[Process]:
        rows = tree.scan(self.host)
        ours = {pid for pid in (self._vram.pid, self._rescue.pid) if pid}
        for pid, row in rows.items():
            # Orphans that we adopted: a build that leaves thousands behind must not run out of pids. Our own
            # children are waited for by those who started them.
            if row.state == "Z" and row.parent == os.getpid() and pid not in {*ours, self._child}:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return tree.descendants(self.host, rows, os.getpid(), without=ours)

    def _count_ended(self, processes: Sequence[Process]) -> None:
        now = {p.key: p.bytes for p in processes if plan.is_compiler(p.name)}
        self.account.compilers_ended += len(self._seen.keys() - now.keys())
        self._seen = now

    def _pause(self, processes: Sequence[Process], left: Room, now: float) -> None:
        compilers = [p for p in processes if plan.is_compiler(p.name)]
        self._stopped = {p.key: p for p in compilers if p.key in self._stopped}
        self.account.paused_seconds += len(self._stopped) * (now - self._looked_at)
        ours = [p for p in compilers if not p.stopped or p.key in self._stopped]  # others' stops are theirs
        stop, go = plan.to_stop(ours, left.available_bytes, plan.reserve(left.total_bytes), self._expected())
        self._rescue.note(p.pid for p in stop)
        if tree.send(stop, signal.SIGSTOP):
            self.account.pauses += len(stop)
            self._stopped.update((p.key, p) for p in stop)
        tree.send(go, signal.SIGCONT)
        for process in go:
            self._stopped.pop(process.key, None)

    def _expected(self) -> int:
        """Return what a compiler may grow to: by what this build has shown, once it has shown enough."""
        seen = int(self.account.compiler_bytes * plan.MARGIN)
        if self.account.compilers_ended >= plan.ENOUGH_SEEN:
            return seen
        return max(seen, self.order.compiler_bytes)

    def _ask_to_save(self, processes: Sequence[Process], left: Room, seconds: float) -> None:
        number = self.order.save_signal
        near = self._shortage.is_near(seconds, left.available_bytes + left.swap_bytes, left.total_bytes)
        if number is None or not near or seconds - self._saved_at < _SAVE_AGAIN_SECONDS:
            return
        for process in sorted(processes, key=lambda p: -p.bytes):
            if tree.catches(self.host, process, number) and tree.send([process], number):
                self._saved_at = seconds
                self.account.saved.append((f"{process.name} (pid {process.pid})", seconds))
                return

    def _end_all(self, processes: Sequence[Process], number: signal.Signals) -> None:
        self._ending_since = self._ending_since or self.host.clock.mono()
        tree.send(processes, number)
        self._let_go()  # who is stopped hears nothing but SIGKILL

    def _let_go(self) -> None:
        tree.send(self._stopped.values(), signal.SIGCONT)
        self._stopped.clear()

    def _pass_signal(self, number: signal.Signals, process: subprocess.Popen[bytes]) -> None:
        if number in _TO_COMMAND:
            process.send_signal(number)
            return
        self.account.interrupted = True
        if number in (signal.SIGINT, signal.SIGQUIT) and _terminal_is_ours():
            return  # the terminal has sent it to all of us already
        self._end_all(self._tree(), number)

    @contextlib.contextmanager
    def _signals_pass(self) -> Iterator[list[signal.Signals]]:
        arrived: list[signal.Signals] = []

        def note(number: int, _: FrameType | None) -> None:
            arrived.append(signal.Signals(number))

        # What is ignored stays so, for the command as well: nohup is to keep both alive.
        heard = [n for n in (*_TO_ALL, *_TO_COMMAND) if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, note) for number in heard}
        try:
            yield arrived
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _drain(self) -> None:
        while self._relay.open and self._relay.pump(0.0):
            pass


def _terminal_is_ours() -> bool:
    """Tell whether we are the job in the foreground, to which Ctrl-C goes as a whole; input may be a file."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
