"""Signals to exactly one process, never to another that has since reused its pid. Standard library only.

A process is identified by its pid, its start time (in ticks since boot) and its user. Through a pidfd the signal
reaches exactly the process that was checked, or none.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

_HARMLESS_ONLY_IF_CAUGHT = frozenset({signal.SIGUSR1, signal.SIGUSR2})


class ExactProcess(NamedTuple):
    """Identity of a process: ``uid`` is its real user."""

    pid: int
    start_ticks: int
    uid: int


def send(whom: ExactProcess, number: signal.Signals) -> str:
    """Send a signal to exactly this process; return why not, or an empty text if it was sent."""
    pid = whom.pid
    if pid in (0, 1, os.getpid()):
        return "it is the system's or our own"
    try:
        handle = os.pidfd_open(pid)
    except OSError as error:
        return f"{error.strerror}"
    except OverflowError:  # from a note written by another user
        return "no process has this number"
    try:
        # Check after opening: the pidfd stays with one process, so the result of the check stays valid.
        (_, start), (uid, caught) = _stat(pid), _user_and_caught(pid)
        reasons = {
            "its pid belongs to another process now": start != whom.start_ticks,
            "it is another user's": uid != whom.uid,
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


def state_of(whom: ExactProcess) -> str:
    """Return the state letter of a process (proc(5)); empty where it has ended."""
    try:
        state, start = _stat(whom.pid)
    except (OSError, ValueError, IndexError):
        return ""
    return state if start == whom.start_ticks and state not in ("Z", "X") else ""


def _stat(pid: int) -> tuple[str, int]:
    """Return a process's state and its start in ticks: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html."""
    words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return words[0].decode(), int(words[19])


def _user_and_caught(pid: int) -> tuple[int, int]:
    """Return a process's real user and the mask of signals that it catches (proc_pid_status(5))."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    uid, caught = (status.partition(f"\n{name}:")[2].split(None, 1)[0] for name in ("Uid", "SigCgt"))
    return int(uid), int(caught, 16)
