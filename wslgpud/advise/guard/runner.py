"""Runs a command under supervision until its end, its time limit or a signal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from wslgpud.advise.guard import tree
from wslgpud.advise.guard.relay import Relay
from wslgpud.advise.guard.summary import explanation
from wslgpud.advise.guard.tree import Process
from wslgpud.advise.guard.usage import MemoryLeft, RunStats, Shortage, TreeMemory, VramWatch, memory_left
from wslgpud.host import Host
from wslgpud.sources.wsl import generation

#: A compiler allocates hundreds of megabytes per second: with --pause, sample before the next gigabyte.
LOOK_SECONDS, PAUSE_LOOK_SECONDS = 0.5, 0.1
#: Without output, only polling shows the command's end.
_POLL_SECONDS = 0.1
#: Compilers that must have ended before their peaks replace the defaults.
_ENOUGH_SEEN = 3
#: If a run shorter than this showed no more than the shell that starts it, the command itself was not sampled.
_BRIEF_SECONDS, _SHELL_BYTES = 2 * LOOK_SECONDS, 1 << 20
#: The pause between samples is at least this many times the duration of one.
_REST = 4
#: Between SIGTERM and SIGKILL: time to remove partial files.
GRACE_SECONDS = 10.0
_SAVE_AGAIN_SECONDS = 300.0
#: Exit status of timeout(1).
TIMED_OUT = 124
#: Passed on to the whole tree, as a terminal does; other signals are not handled.
_TO_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_TO_COMMAND = (signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class GuardedCommand:
    """The command and how to run it; ``compiler_bytes`` is the expected peak of one compiler."""

    command: Sequence[str]
    environment: Mapping[str, str]
    timeout_seconds: float | None = None
    pause: bool = False
    save_signal: signal.Signals | None = None
    compiler_bytes: int = tree.CXX_BYTES

    @property
    def jobs(self) -> int | None:
        """How many jobs it may run at once, if that is limited."""
        number = self.environment.get("MAX_JOBS", "")
        return int(number) if number.isdecimal() else None


class GuardedRun:
    """One run of a command. Not thread-safe; signals are handled once ``to_end`` starts."""

    def __init__(
        self,
        guarded: GuardedCommand,
        host: Host,
        relay: Relay,
        vram: VramWatch,
        show: Callable[[RunStats, MemoryLeft, GuardedRun], None] = lambda *_: None,
    ) -> None:
        """Start nothing yet; ``show`` is called at every sample."""
        self.guarded, self.host, self.stats = guarded, host, RunStats()
        #: all processes of the command, as last seen
        self.processes: Sequence[Process] = ()
        self._relay, self._vram, self._show = relay, vram, show
        self._shortage, self._rescue, self._memory = Shortage(), tree.Rescue(), TreeMemory(host)
        self._stopped: dict[tuple[int, int], Process] = {}
        self._compilers: set[tuple[int, int]] = set()
        self._ending_since: float | None = None
        self._saved_at = float("-inf")
        self._looked_at = self._started_at = 0.0
        self._child: subprocess.Popen[bytes]

    @property
    def stopped(self) -> int:
        """Number of stopped compilers."""
        return len(self._stopped)

    def to_end(self) -> RunStats:
        """Run the command and return its figures.

        Raises:
            OSError: no shell could be started.
        """
        line = ["/bin/sh", "-c", 'exec "$@"', "sh", *self.guarded.command]
        before = memory_left(self.host)
        self._started_at = self._looked_at = self.host.clock.mono()
        with self._signals_pass() as arrived:
            self._child = subprocess.Popen(
                line, env=dict(self.guarded.environment), stdout=self._relay.stdout, stderr=self._relay.stderr
            )
            self._relay.started()
            try:
                self._watch(arrived)
            finally:
                self._let_go()
                self._rescue.close()
        while self._relay.open and self._relay.pump(0.0):
            pass
        stats, code = self.stats, self._child.returncode
        stats.seconds = self.host.clock.mono() - self._started_at
        stats.code = TIMED_OUT if stats.timed_out else 128 - code if code < 0 else code
        if stats.seconds < _BRIEF_SECONDS and stats.biggest[1] < _SHELL_BYTES:
            stats.peak_bytes = None
        after = memory_left(self.host)
        if after.total_bytes == before.total_bytes:  # counted for the same group
            stats.oom_kills = after.oom_kills - before.oom_kills
        stats.cards = self._vram.cards
        if stats.code and not stats.timed_out:
            stats.explanation = tuple(explanation(self._relay.tail, stats, wsl=generation(self.host) == 2))
        return stats

    def _watch(self, arrived: list[signal.Signals]) -> None:
        most = PAUSE_LOOK_SECONDS if self.guarded.pause else LOOK_SECONDS
        due = 0.0
        while True:
            now = self.host.clock.mono()
            if now >= due:
                processes = self._look(now)
                # Short runs must be sampled as well, but on a slow machine sampling must not slow the build.
                every = min(most, (now - self._started_at) / 2)
                due = now + max(every, _REST * (self.host.clock.mono() - now))
                if self._child.poll() is not None and (self._ending_since is None or not processes):
                    return
            while arrived:
                self._pass_signal(arrived.pop(0))
            most_wait = most if self._relay.open else _POLL_SECONDS
            self._relay.pump(max(0.0, min(due - self.host.clock.mono(), most_wait)))
            if self._child.poll() is not None:
                due = 0.0

    def _look(self, now: float) -> list[Process]:
        seconds = now - self._started_at
        processes = self._tree()
        left = memory_left(self.host)
        self.stats.note(seconds, left, processes, self._memory.now_bytes(processes))
        compilers = {p.key: p for p in processes if tree.is_compiler(p.name)}
        tree.give_up_first(compilers[key] for key in compilers.keys() - self._compilers)
        self.stats.compilers_ended += len(self._compilers - compilers.keys())
        self._compilers = {*compilers}
        limit = self.guarded.timeout_seconds
        if limit is not None and seconds >= limit and self._ending_since is None:
            self.stats.timed_out = True
            self._end_all(processes, signal.SIGTERM)
        elif self._ending_since is not None and now - self._ending_since >= GRACE_SECONDS:
            self._end_all(processes, signal.SIGKILL)
        elif self._ending_since is None:
            if self.guarded.pause:
                self._pause(processes, left, now)
            if self.guarded.save_signal is not None:
                self._ask_to_save(self.guarded.save_signal, processes, left, seconds)
        self._looked_at = now
        self.processes = processes
        self._show(self.stats, left, self)
        return processes

    def _tree(self) -> list[Process]:
        ours = {pid for pid in (self._vram.pid, self._rescue.pid) if pid}
        tree.reap_orphans({*ours, self._child.pid})
        return tree.descendants(self.host, os.getpid(), without=ours)

    def _pause(self, processes: Sequence[Process], left: MemoryLeft, now: float) -> None:
        compilers = [p for p in processes if tree.is_compiler(p.name)]
        self._stopped = {p.key: p for p in compilers if p.key in self._stopped}
        self.stats.paused_seconds += len(self._stopped) * (now - self._looked_at)
        ours = [p for p in compilers if not p.stopped or p.key in self._stopped]  # not those stopped by others
        # Once enough compilers have ended, their peaks tell how much a compiler may grow.
        expected = int(self.stats.compiler_bytes * tree.MARGIN)
        if self.stats.compilers_ended < _ENOUGH_SEEN:
            expected = max(expected, self.guarded.compiler_bytes)
        stop, go = tree.to_stop(ours, left.available_bytes, tree.reserve(left.total_bytes), expected)
        self._rescue.note(p.pid for p in stop)
        if tree.send(stop, signal.SIGSTOP):
            self.stats.pauses += len(stop)
            self._stopped.update((p.key, p) for p in stop)
        tree.send(go, signal.SIGCONT)
        for process in go:
            self._stopped.pop(process.key, None)

    def _ask_to_save(
        self, number: signal.Signals, processes: Sequence[Process], left: MemoryLeft, seconds: float
    ) -> None:
        near = self._shortage.is_near(seconds, left.available_bytes + left.swap_bytes, left.total_bytes)
        if not near or seconds - self._saved_at < _SAVE_AGAIN_SECONDS:
            return
        for process in sorted(processes, key=lambda p: -p.bytes):
            if process.catches(number) and tree.send([process], number):
                self._saved_at = seconds
                self.stats.saved.append((f"{process.name} (pid {process.pid})", seconds))
                return

    def _end_all(self, processes: Sequence[Process], number: signal.Signals) -> None:
        self._ending_since = self._ending_since or self.host.clock.mono()
        tree.send(processes, number)
        self._let_go()  # stopped processes react only to SIGKILL

    def _let_go(self) -> None:
        tree.send(self._stopped.values(), signal.SIGCONT)
        self._stopped.clear()

    def _pass_signal(self, number: signal.Signals) -> None:
        if number in _TO_COMMAND:
            self._child.send_signal(number)
            return
        self.stats.interrupted = True
        # The terminal has already sent Ctrl-C to all of us.
        if number not in (signal.SIGINT, signal.SIGQUIT) or not _terminal_is_ours():
            self._end_all(self._tree(), number)

    @contextlib.contextmanager
    def _signals_pass(self) -> Iterator[list[signal.Signals]]:
        arrived: list[signal.Signals] = []
        # Ignored signals stay ignored, for the command as well: nohup must keep both alive.
        heard = [n for n in (*_TO_ALL, *_TO_COMMAND) if signal.getsignal(n) is not signal.SIG_IGN]
        before = {n: signal.signal(n, lambda number, _: arrived.append(signal.Signals(number))) for n in heard}
        try:
            yield arrived
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _terminal_is_ours() -> bool:
    """Return whether we are the foreground job, which receives Ctrl-C as a whole; input may be a file."""
    try:
        with os.fdopen(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC), "rb", 0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
