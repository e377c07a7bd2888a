"""Word to systemd: readiness, status and the watchdog (sd_notify(3))."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends state changes to the service manager, or nowhere when there is none."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Read the socket and the watchdog interval that systemd left in the environment."""
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        usec = environ.get("WATCHDOG_USEC", "")
        mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        #: seconds after which systemd takes silence for death; None without a watchdog
        self.watchdog_seconds = int(usec) / 1e6 if usec.isdigit() and mine else None

    def send(self, *states: str) -> None:
        """Send states such as ``READY=1``; a manager that does not listen is no reason to stop."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            # Never wait: a manager whose queue is full must not hold up a tick.
            sock.setblocking(False)
            try:
                sock.sendto("\n".join(states).encode(), self._address)
            except OSError:
                return
