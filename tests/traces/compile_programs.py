"""Compiles one model after another with torch.compile: a C++ compiler for each of their parts, many at once.

python -m tests.traces.record_cgroup OUT.jsonl.gz 6144 python tests/traces/compile_programs.py SECONDS
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn


def model(width, depth):
    parts = []
    for number in range(depth):
        parts += [nn.Linear(width, width), (nn.GELU, nn.SiLU, nn.Mish)[number % 3](), nn.LayerNorm(width)]
        parts += [nn.Dropout(0.1), nn.Softmax(-1)] if number % 2 else []
    return nn.Sequential(*parts)


def main():
    end, number = time.monotonic() + float(sys.argv[1]), 0
    while time.monotonic() < end:
        number += 1
        torch.compiler.reset()
        compiled = torch.compile(model(64 + 16 * number, 10), dynamic=False)
        compiled(torch.randn(16, 64 + 16 * number)).square().mean().backward()
        print(f"compiled {number}", flush=True)


if __name__ == "__main__":
    main()
