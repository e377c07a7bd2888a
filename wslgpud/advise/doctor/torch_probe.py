"""Run by a user's Python: prints the version of its torch and whether it can compute, as one JSON line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

PIECE_BYTES, MAX_BYTES = 128 << 20, 4 << 30
facts = {
    "version": torch.__version__,
    "cuda": torch.version.cuda or "",
    "architectures": torch.cuda.get_arch_list() if torch.version.cuda else [],
    "capabilities": [],
    "kernel": "",
    "ran": False,
    "tf32": None,
    "cudnn": None,
    "pinned": None,
}


def pinned() -> tuple[int, bool]:
    """Return how many bytes of host memory could be pinned, and whether that was all that was requested.

    In pieces like a data loader's; a quarter of the free memory, and no more than offloading usually takes.
    """
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    wanted, kept, taken = min(MAX_BYTES, free // 4), [], 0
    while taken < wanted:
        try:
            kept.append(torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True))
        except RuntimeError:
            return taken, False
        taken += PIECE_BYTES
    return taken, True


try:
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            facts["capabilities"].append("{}.{}".format(*torch.cuda.get_device_capability(index)))
        # is_available() is true even where no kernel fits the card: only running one proves it.
        numbers = torch.arange(1024, device="cuda", dtype=torch.float32)
        facts["ran"] = float((numbers * 2).sum()) == 1024.0 * 1023
        facts["tf32"] = torch.backends.cuda.matmul.allow_tf32
        facts["cudnn"] = torch.backends.cudnn.version()
        if "microsoft" in os.uname().release:  # elsewhere only RAM limits it
            facts["pinned"] = pinned()
except Exception as error:  # noqa: BLE001 - whatever the driver says is the finding
    facts["kernel"] = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
sys.stdout.write(json.dumps(facts) + "\n")
