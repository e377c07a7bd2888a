"""Programs that share a card: one of each company takes ever more of it, the others only work.

    python company_programs.py NAME FILE

writes what PyTorch has reserved on the card to FILE, four times a second.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

NAME, FILE = sys.argv[1], sys.argv[2]
GIB, MIB = 1 << 30, 1 << 20
#: seconds before those that grow begin
PATIENCE = 6.0
rng = random.Random(os.getpid())


def told():
    while True:
        held = torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0
        part = Path(f"{FILE}.part")
        part.write_text(str(held))
        part.replace(FILE)
        time.sleep(0.25)


def take(mib):
    return torch.ones(mib * MIB // 4, device="cuda")


def work(side=4096, times=20):
    a = torch.randn(side, side, device="cuda")
    for _ in range(times):
        a = torch.tanh(a @ a)
    return float(a[0, 0])


def network(width=1024, depth=6):
    net = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth))).cuda()
    return net, torch.optim.AdamW(net.parameters())


def step(net, optimizer, batch=4096):
    out = net(torch.randn(batch, net[0][0].in_features, device="cuda"))
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return out


def before():
    """Do the same work without keeping anything, or wait: half of them each."""
    end = time.monotonic() + PATIENCE + 6.0
    if os.getpid() % 2:
        time.sleep(PATIENCE + 6.0)
    while time.monotonic() < end:
        work(2048, 10)
        torch.from_numpy(np.random.default_rng(0).random((1 << 16, 64), np.float32)).cuda()
        time.sleep(0.1)


# Those that only work.


def serves():
    kept = take(4096)
    while True:
        work(times=5)
        time.sleep(rng.uniform(0.05, 0.3))
        kept[0] += 1


def trains():
    net, optimizer = network()
    while True:
        step(net, optimizer)


def idles():
    kept = take(2048)
    while True:
        time.sleep(5)
        kept[0] += 1


def desktop():
    while True:
        frame = take(rng.randrange(60, 200))
        time.sleep(0.1)
        del frame
        if rng.random() < 0.1:
            torch.cuda.empty_cache()


def loads_data():
    """Read a data set into RAM, with a training beside it."""
    (net, optimizer), rows = network(), []
    while True:
        rows.append(np.random.default_rng(len(rows)).random((1 << 18, 8)))
        step(net, optimizer, 512)
        time.sleep(0.05)


def pins():
    """Feed a training from pinned memory, a new buffer for each batch."""
    net, optimizer = network()
    while True:
        batch = torch.randn(8192, 1024).pin_memory().cuda(non_blocking=True)
        net(batch).mean().backward()
        optimizer.step()
        time.sleep(0.1)


def preprocesses():
    """Work on the processor, with a little on the card."""
    while True:
        np.linalg.svd(np.random.default_rng(1).random((300, 300)))
        work(512, 2)


# Those that grow.


def keeps_outputs():
    net, optimizer = network()
    before()
    kept = []
    while True:
        kept.append(step(net, optimizer, 32768))
        time.sleep(0.15)


def caches_keys():
    kept = [take(3000)]
    before()
    while True:
        kept.append(take(64))
        work(2048, 4)
        time.sleep(0.05)


def loads_models():
    """Read weights from a file into RAM and move them to the card, one model after another."""
    file = f"{FILE}.weights"
    torch.save(torch.randn(1024 * MIB // 4), file)
    before()
    kept = []
    while True:
        kept.append(torch.load(file).cuda())
        work(2048, 10)
        time.sleep(rng.uniform(0.5, 1.5))


def starts_late():
    net, optimizer = network(2048, 12)
    kept = []
    while True:
        kept.append(step(net, optimizer, 16384))
        time.sleep(0.1)


def longer_sequences():
    net, optimizer = network()
    batch = 2048
    before()
    while True:
        step(net, optimizer, batch)
        batch += 1024
        time.sleep(0.02)


def index():
    """Copy vectors to the card as they come from the processor."""
    before()
    kept = []
    while True:
        kept.append(torch.from_numpy(np.random.default_rng(0).random((1 << 16, 256), np.float32)).cuda())
        time.sleep(0.02)


def waits_and_takes():
    """A notebook in which cells are run: large tensors at irregular times, nothing in between."""
    kept = [take(1000)]
    before()
    while True:
        kept.append(take(rng.randrange(500, 1500)))
        time.sleep(rng.uniform(0.5, 2.5))


threading.Thread(target=told, daemon=True).start()
try:
    globals()[NAME]()
except torch.cuda.OutOfMemoryError:
    time.sleep(60)
