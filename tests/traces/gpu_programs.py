"""Trainings and servers in PyTorch whose VRAM ends well or badly, for ``record_on_gpus.py``.

    python gpu_programs.py NAME CARD SECONDS

Each prints ``ready`` once torch is loaded, begins at a line on its standard input, and prints ``failed`` with
the time of the monotonic clock when CUDA is out of memory. ``SECONDS`` is when one that ends badly is to do
so, about.
"""

from __future__ import annotations

import random
import sys
import time

import torch
from torch import nn

NAME, CARD, SECONDS = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
LEFT = 16 << 30
DEVICE = f"cuda:{CARD}"
WIDTH, DEPTH, LENGTH = 1024, 8, 512
rng = random.Random(1)
began = 0.0


def now():
    return time.monotonic() - began


def free():
    """Return the bytes that are free on the card."""
    return torch.cuda.mem_get_info(CARD)[0]


def held():
    return torch.cuda.memory_allocated(CARD)


class Training:
    """A small transformer with Adam: a step of so many sequences of so many tokens."""

    def __init__(self, depth=DEPTH):
        layer = nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, batch_first=True)
        self.net = nn.TransformerEncoder(layer, depth).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.net.parameters())

    def data(self, batch, length=LENGTH):
        return torch.randn(batch, length, WIDTH, device=DEVICE)

    def step(self, batch, length=LENGTH):
        self.net(self.data(batch, length)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        time.sleep(0.05)

    def batch_for(self, size):
        """Find the batch whose step takes so many bytes, by trying two smaller ones.

        Still smaller ones tell nothing: there the optimizer takes more than the step itself.
        """
        peaks = []
        for batch in (6, 14):
            self.step(batch)
            torch.cuda.reset_peak_memory_stats(CARD)
            self.step(batch)
            peaks.append(torch.cuda.max_memory_allocated(CARD))
        each = (peaks[1] - peaks[0]) / 8
        return max(1, int(6 + (size - peaks[0]) / each))


def variable_lengths():
    """Trains on texts of all lengths; the caching allocator takes what the longest needs, and keeps it."""
    room = free()
    training = Training()
    batch = training.batch_for(0.55 * room)
    while True:
        training.step(batch, 64 * round(min(8, max(1, rng.gauss(4, 2)))))


def keeps_outputs(*, calm_seconds, tidy):
    """Trains well for a while; then an evaluation forgets no_grad and keeps its outputs, graph and all."""
    room = free()
    training = Training()
    batch = training.batch_for(min(16 << 30, 0.3 * room))
    while now() < calm_seconds:
        training.step(batch)
    if tidy:
        torch.cuda.empty_cache()  # else what is kept fills the allocator's pool first, and nobody sees it
    rate = (room - held()) / (SECONDS - calm_seconds)
    start, before, kept = now(), held(), []
    while True:
        kept.append(training.net(training.data(max(1, batch // 16))))
        time.sleep(max(0.0, start + (held() - before) / rate - now()))


def leak():
    keeps_outputs(calm_seconds=0.15 * SECONDS, tidy=True)


def late_leak():
    keeps_outputs(calm_seconds=0.35 * SECONDS, tidy=False)


def calm():
    """Trains with one batch size."""
    training = Training()
    batch = training.batch_for(8 << 30)
    while True:
        training.step(batch)


def ballast():
    """Takes all of the card but LEFT bytes, so that what is left is a smaller one."""
    _kept = torch.empty(free() - LEFT, dtype=torch.uint8, device=DEVICE)
    print("taken", flush=True)
    time.sleep(1e6)


def predictions_kept():
    """Trains, and keeps what it predicted on the card for a report at the end of the epoch."""
    room, kept = free(), []
    training = Training(depth=4)
    batch = training.batch_for(0.2 * room)
    start, rate = now(), (room - torch.cuda.memory_reserved(CARD)) / SECONDS
    size = 0
    while True:
        training.step(batch)
        while size < rate * (now() - start):
            kept.append(training.net(training.data(8)).detach().clone())
            size += kept[-1].nbytes


def serves():
    """Loads a model piece by piece, takes 90 % of the card for keys and values at once, and answers."""
    room = free()
    _weights = [(torch.zeros(64 << 20, device=DEVICE), time.sleep(0.25)) for _ in range(16)]
    time.sleep(3.0)
    _cache = torch.zeros(int(0.9 * room - torch.cuda.memory_reserved(CARD)), dtype=torch.uint8, device=DEVICE)
    while True:
        prompt = torch.randn(rng.randint(1, 16), rng.randint(64, 2048), 1024, device=DEVICE)
        (prompt @ torch.randn(1024, 1024, device=DEVICE)).tanh().sum().item()
        time.sleep(rng.uniform(0.05, 0.4))


def mixed_lengths():
    """Trains on batches of all sizes; the allocator may take 95 % and gives back what it hoards there."""
    room = free()
    total = torch.cuda.get_device_properties(CARD).total_memory
    torch.cuda.set_per_process_memory_fraction(0.95 * room / total, CARD)
    training = Training()
    batch = training.batch_for(0.6 * room)
    while True:
        training.step(max(1, round(batch * rng.uniform(0.2, 1.0))), 32 * rng.randint(2, 16))


def growing_lengths():
    """Trains on ever longer texts, as a curriculum does; SECONDS is when the longest would not fit."""
    room = free()
    training = Training()
    batch = training.batch_for(0.35 * room)
    while True:
        training.step(batch, 64 * round(LENGTH / 64 * (0.5 + 3.5 * now() / SECONDS)))


def validates():
    """Trains, and every 16 s validates with bigger batches whose memory it gives back."""
    room = free()
    training = Training()
    batch = training.batch_for(0.5 * room)
    while True:
        end = time.monotonic() + 12.0
        while time.monotonic() < end:
            training.step(batch)
        parts = []
        while torch.cuda.memory_reserved(CARD) < 0.85 * room:
            parts.append(torch.empty(int(0.02 * room), dtype=torch.uint8, device=DEVICE).fill_(1))
            time.sleep(0.15)
        time.sleep(1.5)
        del parts
        torch.cuda.empty_cache()


def index_doubles():
    """Adds vectors to an index that takes twice as much whenever it is full, and copies itself over."""
    index, used = torch.zeros(1 << 20, 64, device=DEVICE), 0
    each = (8 << 30) // (4 * 64) / SECONDS
    while True:
        wanted = int(each * now())
        if wanted > len(index):
            new = torch.zeros(2 * len(index), 64, device=DEVICE)
            new[: len(index)] = index
            index = new
            del new
            torch.cuda.empty_cache()
        index[used:wanted] = torch.randn(wanted - used, 64, device=DEVICE)
        used = wanted
        time.sleep(0.2)


def desktop():
    """Plays a desktop: windows of 0.9 to 1.6 GiB in all that come, change and go."""
    windows = [torch.empty(rng.randint(40, 140) << 20, dtype=torch.uint8, device=DEVICE) for _ in range(12)]
    while True:
        windows[rng.randrange(12)] = torch.empty(rng.randint(40, 140) << 20, dtype=torch.uint8, device=DEVICE)
        torch.cuda.empty_cache()
        time.sleep(rng.uniform(0.3, 3.0))


def main():
    global began
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        globals()[NAME]()
    except torch.cuda.OutOfMemoryError:
        print("failed", time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
