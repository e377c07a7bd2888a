"""Jumps of the wall clock, as left by sleep, hibernation and a paused virtual machine."""

from __future__ import annotations

from wslgpud.metrics import counter, gauge
from wslgpud.model import Event, Sample
from wslgpud.sources import Source, readings
from wslgpud.words import template

#: Smaller jumps are harmless corrections by a time server.
_MIN_SECONDS = 1.0
_FORWARD = template("the clock jumped forward by {seconds}")
_BACK = template("the clock jumped back by {seconds}")

JUMPS = counter(
    "clock_jumps",
    "Times the wall clock jumped against the monotonic one: the machine slept, or the time was set. Gaps in the "
    "history around a jump are no outage.",
)
LAST_JUMP = gauge(
    "clock_last_jump_seconds", "Size of the last jump of the wall clock; absent before the first.", stored=False
)


class ClockSource(Source):
    """Compares the two clocks at every tick.

    A WSL2 virtual machine is paused by the hypervisor, not suspended, so CLOCK_BOOTTIME does not show it; after it
    resumes, the wall clock is set forward (hv_utils.timesync_implicit, WSL 2.1.1 and later).
    """

    name = "clock"
    fast = True  # a sleep must be known with the first sample after it
    metrics = (JUMPS, LAST_JUMP)

    _offset: float | None = None
    _jumps: int = 0
    _last: float | None = None

    def read(self) -> Sample:
        """Return the number of clock jumps, and an event if one just happened."""
        wall, mono = self.host.clock.wall(), self.host.clock.mono()
        before, self._offset = self._offset, wall - mono
        jump = 0.0 if before is None else self._offset - before
        events: tuple[Event, ...] = ()
        if abs(jump) > max(2 * self.config.sampling.interval_seconds, _MIN_SECONDS):
            self._jumps += 1
            self._last = round(jump, 3)
            events = (Event("clock_jump", wall, _FORWARD if jump > 0 else _BACK, {"seconds": self._last}),)
        return Sample(tuple(readings([(JUMPS, self._jumps), (LAST_JUMP, self._last)])), events=events)
