"""The systemd service: sd_notify(3), capabilities, protection from the OOM killer."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Mapping
from contextlib import suppress

from wslgpud.host import oom_score_adjust
from wslgpud.metrics import MetricSpec
from wslgpud.model import Reading

_HELP = (
    "The kernel's choice when memory runs out: below 0 it kills others before this daemon (-1000: never the daemon),"
    " above 0 the daemon first."
)
OOM_SCORE_ADJUST = MetricSpec("oom_score_adjust", "gauge", "", _HELP, stored=False)
METRICS = (OOM_SCORE_ADJUST,)

#: samples in a row that may be missing before the watchdog considers us dead, as for /-/healthy
_MISSED_TICKS = 5
#: prctl(2)
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4


class Notifier:
    """Sends state changes to the service manager that the environment names, or nowhere when there is none."""

    def __init__(self, environ: Mapping[str, str], interval_seconds: float) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_usec = environ.get("WATCHDOG_USEC", "")
        self._needed_usec = round(_MISSED_TICKS * interval_seconds * 1e6)

    @property
    def enabled(self) -> bool:
        """Whether there is a service manager."""
        return bool(self._address)

    def ready(self) -> None:
        """Report the end of the start, and adapt the watchdog to a long sampling interval.

        Its timeout is in the unit, the interval in the configuration: without this, a daemon that samples once per
        minute would be killed once per minute.
        """
        impatient = self._watchdog_usec.isdecimal() and int(self._watchdog_usec) < self._needed_usec
        self.send("READY=1", *[f"WATCHDOG_USEC={self._needed_usec}"] * impatient)

    def send(self, *states: str) -> None:
        """Send states such as ``STOPPING=1``; a manager that does not listen is no reason to stop."""
        if not (self._address and states):
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            # Never block: a manager whose queue is full must not delay a tick.
            sock.setblocking(False)
            sock.sendto("\n".join(states).encode(), self._address)


def keep_capabilities() -> None:
    """Drop the unit's ambient capabilities: programs started from now on, as other users, get none.

    systemd passes them as ambient capabilities, which every child would inherit, including the user's alert command.
    """
    ctypes.CDLL(None).prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)


def lack_of_protection(environ: Mapping[str, str], score: int | None) -> str:
    """Return a warning if we are a service that the OOM killer does not spare, else an empty message.

    systemd says nothing when it cannot lower the score, so it is read back.
    """
    if "NOTIFY_SOCKET" not in environ or score is None or score < 0:
        return ""
    return (
        "when memory runs out the kernel may kill this daemon before the process that uses it up: its OOM score"
        f" adjustment is {score}. A user's service, or one in a container without CAP_SYS_RESOURCE, cannot be"
        " protected; 'sudo wslgpud service install' sets up one that is"
    )


def readings() -> list[Reading]:
    score = oom_score_adjust()
    return [] if score is None else [Reading(OOM_SCORE_ADJUST, score)]
