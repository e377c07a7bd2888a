"""The brake's metrics; all absent while it is off."""

from __future__ import annotations

from wslgpud.metrics import counter, gauge

READY = gauge("brake_ready", "1 if the brake could pause a job now, 0 if it is on but cannot; absent if off.")
HELD = gauge("brake_held_jobs", "Jobs currently paused by the brake.")
HELD_BYTES = gauge("brake_held_bytes", "Memory of the paused jobs at the pause: RAM and swap, on a GPU VRAM.")
PAUSES = counter("brake_pauses", "Jobs paused since the daemon started.")
ENDS = counter(
    "brake_ends",
    "Pauses ended, by how: room (resumed when memory was free again), owner (resumed by a user), time (resumed after "
    "hold_minutes), stopped (on request), ended (the job was killed by something else).",
    "how",
    stored=False,
)
SPARED = counter(
    "brake_spared",
    "Times that memory was about to run out but no job was paused, by reason: nobody (no program accounts for it), "
    "several (no single job does), protected, user (not in brake.users), crowd (too many processes), unsure (the "
    "process is only a guess), outside (more of it went to users not in brake.users, files in RAM or the kernel than "
    "to the job that grows), refused (pausing failed).",
    "reason",
    stored=False,
)
PAUSE_SECONDS = gauge(
    "brake_pause_seconds", "Time from the sample to the last process stopped, for the most recent pause.", stored=False
)
METRICS = (READY, HELD, HELD_BYTES, PAUSES, ENDS, SPARED, PAUSE_SECONDS)
