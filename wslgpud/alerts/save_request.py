"""Asking the program that grows to save itself: a signal, and only where the user has configured one.

It goes to a process of the configured user that is still the one that grew (by pid and start time), through a
pidfd, so that a pid used again meanwhile is never hit. SIGUSR1 and SIGUSR2 end a program that does not expect
them; those go only to one that catches them.

Which programs are stopped (SIGSTOP) is on disk before the signal goes out, so that none stays stopped whatever
becomes of the daemon (``kill -9``, an OOM kill, a bug): its next start lets them go on, and so does
``wslgpud alerts release``, which the service runs whenever it has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from wslgpud.config import Alerts, ConfigError
from wslgpud.model import MEMORY, Forecast, Level, ProcessSample, Transition
from wslgpud.security import safe_files

FILE = "stopped.json"
#: Share of headroom below which a critical is acted upon. What is done needs more certainty than what is said: a growth
#: that seems to end within seconds is critical with up to 27.5 % left (risk/README.md), and some of it stops by itself.
ACT_HEADROOM_RATIO = 0.085
_HARMLESS_ONLY_IF_CAUGHT = frozenset({signal.SIGUSR1, signal.SIGUSR2})


class Stopped(NamedTuple):
    pid: int
    start_ticks: int
    uid: int


class StoppedFile:
    """The list of them in the daemon's folder; there is no file while nothing is stopped."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def read(self) -> set[Stopped]:
        """Return what this boot's daemons have stopped and not let go on; nothing where that is not known.

        Start times count from the boot: those of an earlier one could name somebody else now.
        """
        try:
            document = safe_files.parsed(safe_files.contents(self.path))
            if document["boot_id"] != _boot_id():
                return set()
            return {Stopped(*(int(number) for number in entry)) for entry in document["stopped"]}
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return set()

    def write(self, stopped: Iterable[Stopped]) -> None:
        """Replace the list in one step, on disk when this returns; raises OSError where it cannot be written."""
        if entries := sorted(stopped):
            safe_files.put(self.path, json.dumps({"boot_id": _boot_id(), "stopped": entries}), synced=True)
        else:
            self.path.unlink(missing_ok=True)

    def release(self, keys: Container[tuple[int, int]] | None = None) -> list[int]:
        """Let stopped processes go on, those of ``keys`` or all; return the pids of those that were there.

        One that is gone, or belongs to somebody else by now, is forgotten as well.
        """
        noted = self.read()
        wanted = noted if keys is None else {s for s in noted if s[:2] in keys}
        going = [s.pid for s in sorted(wanted) if not send(s[:2], signal.SIGCONT, s.uid)]
        if wanted or keys is None:
            self._forget(noted - wanted)
        return going

    def stop(self, process: Stopped) -> str:
        """Note a process, then stop it; return why not, or nothing when it was stopped."""
        noted = self.read()
        try:
            self.write({*noted, process})
        except OSError as error:
            # Stopped without a note, it would stay so for ever if we were killed.
            return f"{self.path} cannot be written: {error.strerror}"
        if problem := send(process[:2], signal.SIGSTOP, process.uid):
            self._forget(noted)
        return problem

    def _forget(self, left: Iterable[Stopped]) -> None:
        with contextlib.suppress(OSError):  # the worst that an entry too many does is another SIGCONT
            self.write(left)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


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


class SaveRequests:
    """Sends the signal once per incident and process; lets a stopped process go on when it is over."""

    def __init__(self, settings: Alerts, folder: Path) -> None:
        """Let go on what an earlier daemon had stopped, as noted in ``folder``; ConfigError: no such user."""
        self._signal = signal.Signals[settings.save_signal] if settings.save_signal else None
        self._rules = frozenset(settings.save_rules)
        self._level = Level[settings.save_level.upper()]
        self._user = _user(settings.save_user)
        self._asked: dict[str, set[tuple[int, int]]] = {}
        self._waiting: dict[str, Transition] = {}
        self._file = StoppedFile(folder)
        self.released = self._file.release()

    def note(self, transition: Transition, processes: Sequence[ProcessSample]) -> str:
        """Act on a change of level; return what was done, for the log, or nothing."""
        if self._signal is None or transition.rule not in self._rules:
            return ""
        self._waiting.pop(transition.resource, None)
        if self._level == transition.new == Level.CRITICAL and not _is_certain(transition.forecast):
            self._waiting[transition.resource] = transition
            return ""
        stops = self._signal == signal.SIGSTOP
        asked = self._asked.setdefault(transition.resource, set())
        if transition.new <= Level.INFO:
            self._asked.pop(transition.resource)
            # Another resource that is still short may have had it stopped as well.
            going = self._file.release(asked.difference(*self._asked.values())) if stops else []
            return f"sent SIGCONT to pid {', '.join(map(str, going))}" if going else ""
        process = culprit(transition, processes)
        if transition.new < self._level or process is None or process.key in asked:
            return ""
        whom = Stopped(*process.key, self._user)
        problem = self._file.stop(whom) if stops else send(process.key, self._signal, self._user)
        if problem:
            return f"{process.name} (pid {process.pid}) was not sent {self._signal.name}: {problem}"
        asked.add(process.key)
        return f"{process.name} (pid {process.pid}) was sent {self._signal.name}"

    def due(self, forecasts: Mapping[str, Forecast]) -> list[Transition]:
        """Return the changes that have waited for certainty, with the forecasts of now that bring it."""
        found = [(row, forecasts.get(resource)) for resource, row in self._waiting.items()]
        return [replace(row, forecast=now) for row, now in found if now is not None and _is_certain(now)]

    def close(self) -> None:
        """Let all that were stopped go on: without us nobody would."""
        self._asked.clear()
        self._file.release()


def _is_certain(forecast: Forecast | None) -> bool:
    return forecast is None or forecast.headroom_bytes <= ACT_HEADROOM_RATIO * forecast.capacity_bytes


def send(key: tuple[int, int], number: signal.Signals, user: int) -> str:
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
        reasons = {
            "its pid belongs to another process now": start != start_ticks,
            "it is another user's": uid != user,
            f"it does not catch {number.name} and would be ended by it": number in _HARMLESS_ONLY_IF_CAUGHT
            and not caught >> (number - 1) & 1,
        }
        problem = next((reason for reason, holds in reasons.items() if holds), "")
        if not problem:
            signal.pidfd_send_signal(handle, number)
    except (OSError, ValueError, IndexError) as error:
        return f"{error}"
    finally:
        os.close(handle)
    return problem


def _identity(pid: int) -> tuple[int, int, int]:
    """Return a process's start time in ticks, its real user, and the mask of signals that it catches.

    Formats: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html, proc_pid_status.5.html
    """
    folder = Path(f"/proc/{pid}")
    start = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[19])
    status = (folder / "status").read_text(encoding="utf-8", errors="replace")
    lines = dict(line.partition(":")[::2] for line in status.splitlines())
    return start, int(lines["Uid"].split()[0]), int(lines["SigCgt"].strip(), 16)


def _user(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid if name else os.geteuid()
    except KeyError as error:
        raise ConfigError("alerts.save_user: there is no user {name} here", name=name) from error
