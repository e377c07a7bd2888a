"""Asking the program that grows to save itself: a signal, and only where the user has configured one.

It goes to a process of the configured user that is still the one that grew (by pid and start time), through a
pidfd, so that a pid used again meanwhile is never hit. SIGUSR1 and SIGUSR2 end a program that does not expect
them; those go only to one that catches them. A program that was stopped goes on when it is over, and when
we end, however we end (see ``wslgpud.alerts.stopped``).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from wslgpud.alerts.rules import MEMORY
from wslgpud.alerts.stopped import Stopped, StoppedFile
from wslgpud.config import Alerts
from wslgpud.config_key import ConfigError
from wslgpud.model import Level, ProcessSample, Transition
from wslgpud.words import say

_HARMLESS_ONLY_IF_CAUGHT = frozenset({signal.SIGUSR1, signal.SIGUSR2})


def culprit(transition: Transition, processes: Sequence[ProcessSample]) -> ProcessSample | None:
    """Return the one process that a memory warning blames; None for groups, pools and guesses.

    Where a cgroup runs full, only one that is known to be in it: another that grows as fast is innocent.
    """
    forecast = transition.forecast
    if transition.rule != MEMORY or forecast is None or forecast.who_kind != "process":
        return None
    if forecast.cause == "paused":  # it names who grew a quarter of an hour ago: the pid may be another's now
        return None
    process = next((p for p in processes if p.pid == forecast.who_pid), None)
    kind, _, group = transition.resource.partition(":")
    return process if process is None or kind != "cgroup" or process.within(group) else None


class SelfSave:
    """Sends the signal once per incident and process; lets a stopped process go on when it is over."""

    def __init__(self, settings: Alerts, folder: Path) -> None:
        """Understand the configuration, and let go on what an earlier daemon had stopped.

        Args:
            settings: the section of the configuration.
            folder: where it is noted who is stopped.

        Raises:
            ConfigError: there is no such user.
        """
        self._signal = signal.Signals[settings.save_signal] if settings.save_signal else None
        self._rules = frozenset(settings.save_rules)
        self._level = Level[settings.save_level.upper()]
        self._user = _user(settings.save_user)
        self._asked: dict[str, set[tuple[int, int]]] = {}
        self._file = StoppedFile(folder)
        self.released = release(self._file)

    def note(self, transition: Transition, processes: Sequence[ProcessSample]) -> str:
        """Act on a change of level; return what was done, for the log, or nothing."""
        if self._signal is None or transition.rule not in self._rules:
            return ""
        asked = self._asked.setdefault(transition.resource, set())
        if transition.new <= Level.INFO:
            self._asked.pop(transition.resource)
            return self._let_go_on(asked) if self._signal == signal.SIGSTOP else ""
        process = culprit(transition, processes)
        if transition.new < self._level or process is None or process.key in asked:
            return ""
        problem = self._ask(process.key, self._signal)
        if problem:
            return f"{process.name} (pid {process.pid}) was not sent {self._signal.name}: {problem}"
        asked.add(process.key)
        return f"{process.name} (pid {process.pid}) was sent {self._signal.name}"

    def close(self) -> None:
        """Let all that were stopped go on: without us nobody would."""
        self._asked.clear()
        release(self._file)

    def _ask(self, key: tuple[int, int], number: signal.Signals) -> str:
        if number != signal.SIGSTOP:
            return send(key, number, self._user)
        noted = self._file.read()
        try:
            self._file.write({*noted, Stopped(*key, self._user)})
        except OSError as error:
            # Stopped without a note, it would stay so for ever if we were killed.
            return f"{self._file.path} cannot be written: {error.strerror}"
        problem = send(key, number, self._user)
        if problem:
            _rewrite(self._file, noted)
        return problem

    def _let_go_on(self, stopped: set[tuple[int, int]]) -> str:
        # Another resource that is still short may have had it stopped as well.
        held = set().union(*self._asked.values())
        going = release(self._file, {key for key in stopped if key not in held})
        return f"sent SIGCONT to pid {', '.join(map(str, going))}" if going else ""


def release(file: StoppedFile, keys: Iterable[tuple[int, int]] | None = None) -> list[int]:
    """Let stopped processes go on, those of ``keys`` or all; return the pids of those that were there.

    One that is gone, or belongs to somebody else by now, is forgotten as well.
    """
    noted = file.read()
    chosen = None if keys is None else set(keys)
    wanted = {s for s in noted if chosen is None or (s.pid, s.start_ticks) in chosen}
    going = [s.pid for s in sorted(wanted) if not send((s.pid, s.start_ticks), signal.SIGCONT, s.uid)]
    if wanted or chosen is None:
        _rewrite(file, noted - wanted)
    return going


def _rewrite(file: StoppedFile, left: Iterable[Stopped]) -> None:
    with contextlib.suppress(OSError):  # the worst that an entry too many does is another SIGCONT
        file.write(left)


def send(  # noqa: PLR0911 - one line for each reason not to
    key: tuple[int, int], number: signal.Signals, user: int
) -> str:
    """Send a signal to exactly this process; return why not, or nothing when it was sent."""
    pid, start_ticks = key
    if pid in (0, 1, os.getpid()):
        return "it is the system's or our own"
    try:
        handle = os.pidfd_open(pid)
    except OSError as error:
        return f"{error.strerror}"
    except OverflowError:  # of a note that others wrote
        return "no process has such a number"
    try:
        # Only now: from here on the handle is of one process for ever, so what is found out of it holds.
        start, uid, caught = _identity(pid)
        if start != start_ticks:
            return "its pid belongs to another process now"
        if uid != user:
            return "it is another user's"
        if number in _HARMLESS_ONLY_IF_CAUGHT and not caught >> (number - 1) & 1:
            return f"it does not catch {number.name} and would be ended by it"
        signal.pidfd_send_signal(handle, number)
    except (OSError, ValueError, IndexError) as error:
        return f"{error}"
    finally:
        os.close(handle)
    return ""


def _identity(pid: int) -> tuple[int, int, int]:
    """Return a process's start time in ticks, its real user, and the mask of signals that it catches.

    Formats: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html, proc_pid_status.5.html
    """
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - a file of the kernel's
        start = int(file.read().rpartition(b")")[2].split()[19])
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - same
        lines = dict(line.partition(":")[::2] for line in file.read().splitlines())
    return start, int(lines["Uid"].split()[0]), int(lines["SigCgt"].strip(), 16)


def _user(name: str) -> int:
    if not name:
        return os.geteuid()
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise ConfigError(say("alerts.save_user: there is no user {name} here", name=name)) from error
