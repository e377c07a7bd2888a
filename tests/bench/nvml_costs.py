"""Cost of each NVML call on this machine, as the table in wslgpud/probes/README.md.

python -m tests.bench.nvml_costs [LIBRARY]
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from wslgpud.probes.nvml_calls import CALLS, EACH, Call, Failed, NvmlLibrary, written
from wslgpud.probes.nvml_probe import Session

#: never called by the daemon; measured to document why
EXPENSIVE = (Call("bar1", EACH, "BAR1MemoryInfo"), Call("pcie_throughput", EACH, ("PcieThroughput", 0)))
ROUNDS = 200
#: Slower calls are measured fewer times: PCIe throughput would take a minute.
PATIENCE_SECONDS = 2.0


def costs(session: Session) -> str:
    """Return a Markdown table of the duration of each call on the first GPU, in microseconds."""
    gpu = next(gpu for gpu in session.gpus if not gpu.lost)
    lines = [
        ", ".join(f"{k} {v}" for k, v in {"card": gpu.identity.get("name"), **session.system}.items()),
        "",
        "| call | made every | supported | p50 µs | mean µs | max µs |",
        "|---|---|---|---|---|---|",
    ]
    for call in (*CALLS, *EXPENSIVE):
        every = f"{call.every_seconds:g} s" if call.every_seconds else "never" if call in EXPENSIVE else "sample"
        every = f"sample, {every} where slow" if call.eager else every
        for function, arguments in call.forms:
            result, taken = measure(session, function, gpu.handle, *arguments)
            figures = (statistics.median(taken), statistics.fmean(taken), max(taken))
            columns = " | ".join(f"{seconds * 1e6:.1f}" for seconds in figures)
            lines.append(f"| {written(function, *arguments)} | {every} | {result} | {columns} |")
    return "\n".join(lines)


def measure(session: Session, function: str, *arguments: Any) -> tuple[str, list[float]]:
    taken: list[float] = []
    result = "yes"
    while len(taken) < ROUNDS and sum(taken) < PATIENCE_SECONDS:
        started = time.perf_counter()
        try:
            session.ask(function, *arguments)
        except Failed as failed:
            result = failed.error
        taken.append(time.perf_counter() - started)
    return result, taken


if __name__ == "__main__":
    try:
        print(costs(Session(NvmlLibrary("".join(sys.argv[1:2])), time.monotonic())))
    except Failed as failed:
        sys.exit(f"no NVML here: {failed.text or f'{failed.call} returned {failed.error}'}")
