"""What the brake does, as metrics; none of them where it is off."""

from __future__ import annotations

from wslgpud.metrics import counter, gauge

READY = gauge("brake_ready", "1 where the brake could pause a job now, 0 where it is on and cannot; absent if off.")
HELD = gauge("brake_held_jobs", "Jobs that the brake holds paused now.")
HELD_BYTES = gauge("brake_held_bytes", "RAM and swap that the paused jobs held when they were paused.")
PAUSES = counter("brake_pauses", "Jobs paused since the daemon's start.")
ENDS = counter(
    "brake_ends",
    "Paused jobs by what became of them: room (went on as there was room again), owner (was let go on), time (went on "
    "after hold_minutes), stopped (ended by order), ended (by somebody else).",
    "how",
    stored=False,
)
SPARED = counter(
    "brake_spared",
    "Times that nobody was paused though memory was about to run out, by reason: nobody (no program took it), several, "
    "protected, user (not one of those named), crowd (too many processes), unsure (only probably the one), refused.",
    "reason",
    stored=False,
)
PAUSE_SECONDS = gauge(
    "brake_pause_seconds",
    "Time from the sample to the last process stopped, at the last pause.",
    decimals=3,
    stored=False,
)
METRICS = (READY, HELD, HELD_BYTES, PAUSES, ENDS, SPARED, PAUSE_SECONDS)
