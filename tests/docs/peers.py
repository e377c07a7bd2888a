"""The tables that compare with other tools: what was measured together, and what each is for.

What tools do was read in their sources and documents in August 2026. A cost is ours where
``tests/bench/cost.json`` has it (``bench_cost --beside OTHER/bin/wslgpud --json tests/bench/cost.json``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.bench_cost import table

MEASURED = Path(__file__).parents[1] / "bench" / "cost.json"
_DCGM = "[467 MiB in the median](https://github.com/pytorch/ci-infra/issues/1011)"


class Peer(NamedTuple):
    """A tool, fairly."""

    name: str
    watches: str
    keeps: str
    warns: str
    wsl: str
    better: str
    #: name in ``cost.json``; else what somebody else has said of it, or why nobody could here
    measured: str = ""
    said: str = "not measured here"


PEERS = (
    Peer(
        "**wslgpud**",
        "NVIDIA GPUs, RAM, swap, Windows' side",
        "every sample for 30 days, summaries for years",
        "by itself, before memory runs out, with the time left",
        "made for it",
        "",
        "wslgpud",
    ),
    Peer(
        "[nvidia_gpu_exporter](https://github.com/utkuozdemir/nvidia_gpu_exporter)",
        "NVIDIA GPUs",
        "nothing",
        "rules for Prometheus",
        "works, by running nvidia-smi for each sample",
        "every field that nvidia-smi knows; packages for Windows and all of Linux",
        said="not measured here: nvidia-smi needs a driver",
    ),
    Peer(
        "[dcgm-exporter](https://github.com/NVIDIA/dcgm-exporter)",
        "NVIDIA's datacenter cards",
        "nothing",
        "no",
        "not meant for it",
        "profiling counters (tensor cores, NVLink), Kubernetes' pods",
        said=_DCGM,
    ),
    Peer(
        "[nvitop](https://github.com/XuehaiPan/nvitop) and its exporter",
        "NVIDIA GPUs, some of the host",
        "nothing",
        "no",
        "runs; no VRAM per process",
        "the best live view of who is on the card; less than half of our memory",
        "nvitop-exporter",
    ),
    Peer(
        "[netdata](https://github.com/netdata/netdata)",
        "nearly everything; GPUs by nvidia-smi",
        "three tiers, gigabytes",
        "thresholds and anomalies, some thirty channels",
        "not mentioned",
        "thousands of series out of the box, anomalies learned for each, fleets",
        "netdata",
    ),
    Peer(
        "[Glances](https://github.com/nicolargo/glances)",
        "the host, containers, GPUs",
        "nothing (exports)",
        "thresholds; a command for each",
        "as on any Linux",
        "runs on every system; containers; two dozen exports",
        "Glances",
    ),
    Peer(
        "[gpud](https://github.com/leptonai/gpud)",
        "health of datacenter GPUs",
        "3 h in SQLite",
        "states, no channel",
        "[saw no GPU](https://github.com/leptonai/gpud/issues/203)",
        "InfiniBand, NVLink, a catalogue of Xids",
    ),
    Peer(
        "[earlyoom](https://github.com/rfjakob/earlyoom)",
        "RAM and swap",
        "nothing",
        "kills the biggest, notifies",
        "as on any Linux",
        "acts by itself when nobody looks; costs nothing",
        "earlyoom",
    ),
    Peer(
        "[systemd-oomd](https://www.freedesktop.org/software/systemd/man/systemd-oomd.service.html)",
        "cgroups by pressure and swap",
        "nothing",
        "kills a whole cgroup",
        "needs PSI and systemd",
        "protects by unit, is there already on many systems",
    ),
    Peer(
        "[gpu-burn](https://github.com/wilicc/gpu-burn)",
        "one card, while it runs",
        "nothing",
        "at the end",
        "as on any Linux",
        "heats the card and finds arithmetic that fails under load: our stress run tests memory alone",
        said="takes the whole card",
    ),
)


def measured() -> dict[str, Any]:
    """Return what the last kept run of the benchmark found."""
    found: dict[str, Any] = json.loads(MEASURED.read_text())
    return found


def cost_table() -> str:
    """Return who costs what, of one run on one machine."""
    return table(measured()["rows"]) + "\n"


def other_cost_table(run: str) -> str:
    """Return the same of another run: "h200" beside a training on a real card, "calm" without one and few tools."""
    return table(json.loads(MEASURED.with_name(f"cost-{run}.json").read_text())["rows"]) + "\n"


def peers_table() -> str:
    """Return who does what, with the cost where it was measured."""
    rows = {row["name"]: row for row in measured()["rows"]}
    heads = ("", "watches", "keeps", "warns", "under WSL2", "CPU, memory", "does better")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for peer in PEERS:
        cost = peer.said
        if peer.measured:
            row = rows[peer.measured]
            # An exporter does nothing until it is asked; all others sample by themselves.
            cpu = row["cpu_ratio"] if row["cpu_ratio"] > 1e-4 or not row["cpu_scraped_ratio"] else None
            cpu = row["cpu_scraped_ratio"] if cpu is None else cpu
            cost = f"{cpu:.2%}, {row['pss_bytes'] / 2**20:.1f} MiB"
        cells = (peer.name, peer.watches, peer.keeps, peer.warns, peer.wsl, cost, peer.better)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
