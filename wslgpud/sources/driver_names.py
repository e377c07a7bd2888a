"""The names that the driver has for processes on a GPU, which tell those of other namespaces from ours.

Under WSL2 the driver lists processes of all distributions and of WSL's own, each with a pid of its own namespace
(XuehaiPan/nvitop#49), and knows their names from Windows. Natively NVIDIA's library takes them from
``/proc/<pid>/cmdline`` (580.159.04), whose readers any process can make wait for ever, and nobody has seen what it does
under WSL2. So names are asked for in another child than figures, which is ended afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from wslgpud.probes.supervisor import ProbeDown, Supervisor

#: remembered processes; a machine has a handful on its cards
MAX_NAMES = 1024
#: pid and start, as one pid may be several processes one after another
Key = tuple[int, int | None]


class DriverNames:
    """Asks for each process once, in the background; ``patient`` (a recorded machine): at once."""

    def __init__(self, make: Callable[[], Supervisor], *, patient: bool) -> None:
        self._make, self._patient = make, patient
        self._names: dict[Key, str | None] = {}
        self._wanted: set[Key] = set()
        self._asking: threading.Thread | None = None
        self._probe: Supervisor | None = None

    def of(self, key: Key) -> str | None:
        """Return the driver's name of a process, empty where it has none, None while that is not known."""
        if key not in self._names and key not in self._wanted:
            self._wanted.add(key)
            if self._patient:
                self._ask()
        if self._wanted and not self._patient and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(target=self._ask, name="driver-names", daemon=True)
            self._asking.start()
        return self._names.get(key)

    def close(self) -> None:
        """End the child, if one runs."""
        if self._probe is not None:
            self._probe.close()

    def _ask(self) -> None:
        if len(self._names) >= MAX_NAMES:
            self._names.clear()
        probe = self._probe = self._probe or self._make()
        while self._wanted:
            key, ended = next(iter(self._wanted)), probe.hangs_total + probe.crashes_total
            try:
                self._names[key] = str(probe.ask({"name_of": key[0]}).get("name") or "")
            except ProbeDown:
                if probe.hangs_total + probe.crashes_total == ended:
                    return  # it is not due to start again: the next tick tries
                self._names[key] = None  # not asked for again: it would cost the others theirs
            self._wanted.discard(key)
        probe.renew()
