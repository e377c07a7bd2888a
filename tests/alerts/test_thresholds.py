"""From which value on, and for how long, each rule is how bad, and when it is over: users tune their days by these."""

from __future__ import annotations

from wslgpud.alerts.rules import RULES, Rule

#: level:value/seconds for each step; a change here is one for CHANGELOG.md
THRESHOLDS = {
    "oom_kill": "critical:1/0s clear:1/30s momentary",
    "vram_residency_failed": "critical:1/0s clear:1/30s momentary",
    "oom_daemon_kill": "critical:1/0s clear:1/30s momentary",
    "gpu_allocation_refused": "warning:1/0s clear:1/600s momentary",
    "sessions_blocked": "warning:1/0s clear:1/600s momentary",
    "disk_failing": "critical:1/0s clear:1/600s momentary",
    "gpu_error": "warning:1/0s clear:1/600s momentary",
    "gpu_lost": "critical:1/5s clear:1/5s",
    "blind": "warning:3/0s clear:0.1/10s",
    "gpu_driver_gone": "critical:180/0s clear:1/5s",
    "swap_thrash": "warning:0.2/10s critical:0.5/20s clear:0.1/30s",
    "gpu_throttled": "warning:1/60s clear:1/120s",
    "vram_spill": "warning:268435456/20s critical:2147483648/60s clear:134217728/60s",
    "training_leak": "info:1e-09/0s warning:0.25/0s clear:1e-09/30s lapses",
    "training_retries": "warning:1/0s clear:1/600s momentary",
    "training_length": "info:134217728/0s clear:134217728/30s lapses",
    "training_slowed": "info:3/30s clear:2/60s lapses",
    "windows_memory_low": "warning:0.06/30s critical:0.025/30s clear:0.1/60s falling",
    "state_disk_full": "warning:2147483648/5s critical:322122547.2/5s clear:2684354560/30s falling",
    "windows_disk_full": "warning:1.073741824e+10/5s critical:2147483648/5s clear:1.288490189e+10/60s falling",
    "read_only_disk": "critical:1/5s clear:1/10s",
    "source_stale": "warning:60/0s clear:1/5s",
    "cache_returned": "info:1/0s clear:1/600s momentary",
    "clock_jump": "info:1/0s clear:1/600s momentary",
    "store_failing": "warning:1/30s critical:1/600s clear:1/10s",
    "store_damaged": "warning:1/0s clear:1/10s",
}


def written(rule: Rule) -> str:
    steps = " ".join(f"{step.level.label}:{step.value:.10g}/{step.for_seconds:g}s" for step in rule.thresholds)
    kind = " falling" * rule.falling + " momentary" * rule.momentary + " lapses" * rule.lapses
    return f"{steps} clear:{rule.clear:.10g}/{rule.clear_seconds:g}s{kind}"


def test_each_rule_begins_and_ends_where_it_always_did() -> None:
    assert {rule.name: written(rule) for rule in RULES} == THRESHOLDS
