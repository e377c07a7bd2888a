"""Asks the growing program to save a checkpoint: by a signal, and only if the user has configured one.

It goes to a process of the configured user that is still the one that grew (by pid and start time), through a pidfd, so
that a reused pid is never hit. SIGUSR1 and SIGUSR2 would kill a program that does not expect them; they go only to one
that catches them. For pausing a job, see ``wslgpud.brake``.
"""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Sequence

from wslgpud.config import Alerts, ConfigError
from wslgpud.model import MEMORY, Forecast, Level, ProcessSample
from wslgpud.security.exact_signals import ExactProcess, send

#: Share of headroom below which a critical level triggers the request. Acting needs more certainty than warning: a
#: growth that seems to end within seconds is critical with up to 27.5 % left (risk/README.md), and sometimes stops by
#: itself.
ACT_HEADROOM_RATIO = 0.085


def culprit(forecast: Forecast, processes: Sequence[ProcessSample]) -> ProcessSample | None:
    """Return the one process that a forecast blames; None for groups, pools and guesses.

    For a full cgroup, only a process known to be in it: another that grows as fast is innocent.
    """
    # A paused one names a process that grew a quarter of an hour ago: the pid may have been reused.
    if forecast.who_kind != "process" or forecast.cause == "paused":
        return None
    process = next((p for p in processes if p.pid == forecast.who_pid), None)
    kind, _, group = forecast.resource.partition(":")
    return process if process is None or kind != "cgroup" or process.within(group) else None


class SaveRequests:
    """Sends the signal once per alarm and process."""

    def __init__(self, settings: Alerts) -> None:
        """Keep the user and signal. Raises ConfigError: no such user."""
        wanted = settings.save_signal and MEMORY in settings.save_rules  # no other rule knows who it was
        self._signal = signal.Signals[settings.save_signal] if wanted else None
        self._level = Level[settings.save_level.upper()]
        self._user = _user(settings.save_user)
        #: by resource and process, up to which level it need not be asked again
        self._asked: dict[str, dict[tuple[int, int], Level]] = {}

    def ask(
        self, forecast: Forecast, processes: Sequence[ProcessSample], paused: frozenset[tuple[int, int]] = frozenset()
    ) -> str:
        """Act on the forecast of a tick; return a line for the log, or an empty text.

        Processes in ``paused`` are not signalled: the signal would stay pending, and kill or surprise the job when it
        is resumed.
        """
        if forecast.level <= Level.INFO:
            self._asked.pop(forecast.resource, None)
        if self._signal is None or forecast.level < self._level:
            return ""
        if self._level == forecast.level == Level.CRITICAL and not _is_certain(forecast):
            return ""
        asked, process = self._asked.setdefault(forecast.resource, {}), culprit(forecast, processes)
        if process is None or process.key in paused or asked.get(process.key, Level.OK) >= forecast.level:
            return ""
        problem = send(ExactProcess(*process.key, self._user), self._signal)
        asked[process.key] = forecast.level if problem else max(Level)  # it may catch the signal by then
        if problem:
            return f"{process.name} (pid {process.pid}) was not sent {self._signal.name}: {problem}"
        return f"{process.name} (pid {process.pid}) was sent {self._signal.name}"


def _is_certain(forecast: Forecast) -> bool:
    return forecast.headroom_bytes <= ACT_HEADROOM_RATIO * forecast.capacity_bytes


def _user(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid if name else os.geteuid()
    except KeyError as error:
        raise ConfigError("alerts.save_user: there is no user {name} here", name=name) from error
