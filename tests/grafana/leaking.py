"""The training of the made-up evening, as its companion tells of it: it keeps 3 MiB more with each step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from wslgpud.active_runs import Noted
from wslgpud.model import Forecast, Reading, Snapshot
from wslgpud.sampling.noted_runs import readings
from wslgpud.sources import model_servers
from wslgpud.sources.procfs import Identity
from wslgpud.training.companion import Floors

GIB, MIB = 1 << 30, 1 << 20
STEP_SECONDS = 2.6
WHO = Identity(4242, 1, 1, alive=True, uids=frozenset({1000}), groups=frozenset(), name="python")


class Training:
    """Begins ``start`` seconds into the evening."""

    def __init__(self, start: float, uuid: str) -> None:
        self._start, self._uuid = start, uuid
        self._steps, self._floors = 0, Floors()

    def tells(self, t: float, snapshot: Snapshot, forecasts: Sequence[Forecast]) -> Iterator[Reading]:
        """Yield its readings at a moment of the evening."""
        while self._steps < (t - self._start) / STEP_SECONDS:
            self._steps += 1
            kept = kept_after(self._steps)
            self._floors.add(self._steps, kept, kept + int(1.4 * GIB))
        if self._steps:
            card: dict[str, Any] = {"name": self._uuid, "used": kept_after(self._steps), "scales": self._floors.scales}
            card |= {"peak": card["used"] + int(1.4 * GIB), "reserved": int(10.1 * GIB), "pieces": 210 * MIB}
            card |= {"retries": int(t > self._start + 1800), "failures": 0}
            note = {"kind": "training", "what": "train.py", "steps": self._steps, "step_seconds": STEP_SECONDS}
            note |= {"usual_step_seconds": 0.95 * STEP_SECONDS, "pinned": 512 * MIB, "tokens": 8 * 1024 * self._steps}
            note |= {"batch": 8, "length": 1024, "longest": 2048}
            yield from readings([Noted(WHO, {**note, "memory": [card]})], snapshot, forecasts)
            yield Reading(model_servers.UP, 1, (VLLM,))
            page = f"vllm:kv_cache_usage_perc 0.7\nvllm:num_preemptions_total {self._steps // 100}\n"
            page += "vllm:num_requests_running 4\nvllm:num_requests_waiting 1\n"
            yield from model_servers.counted(VLLM, page.encode())
            model = {"name": "gemma3", "size": 6 * GIB, "size_vram": 5 * GIB}
            yield from model_servers.loaded(OLLAMA, json.dumps({"models": [model]}).encode())


VLLM, OLLAMA = "127.0.0.1:8000", "127.0.0.1:11434"


def kept_after(steps: int) -> int:
    return int(8.2 * GIB) + 3 * MIB * steps
