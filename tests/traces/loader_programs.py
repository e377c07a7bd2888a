"""PyTorch data loaders on the processor: one that leaks the way they are known to, one that does not.

    python -m tests.traces.record_cgroup OUT.jsonl.gz 1200 python tests/traces/loader_programs.py NAME SECONDS

``list_leak`` holds its index as a list of Python objects: each look at one changes its reference count, so
that every worker makes its own copy of the page it lies in (pytorch/pytorch#13246). ``packed`` holds the same
index as one array, which all workers share. ``kept_batches`` keeps every batch for the next epoch, in the
shared memory that its worker put it into; ``deep_prefetch`` lets workers run far ahead of a slow training.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

ENTRIES, WORKERS, NEGATIVES = 1_500_000, 6, 6
IMAGE = 224


class Images(Dataset):
    """Makes the image that an entry of the index names, as slowly as a file is decoded."""

    def __init__(self, index):
        self.index = index

    def __len__(self):
        return ENTRIES

    def __getitem__(self, number):
        rng = np.random.default_rng(number)
        # Beside the image that it is about, an item names some of other classes to tell it from.
        names = [str(self.index[i]) for i in (number, *rng.integers(0, ENTRIES, NEGATIVES))]
        image = rng.random((3, IMAGE, IMAGE), dtype=np.float32)
        time.sleep(0.03)
        return torch.from_numpy((image - image.mean()) / image.std()), sum(map(len, names))


def entry(number):
    return f"/data/train/class{number % 1000:04d}/{number:08d}.jpg"


def train(index, seconds):
    """Run epochs of short batches until the time is over."""
    pinned = torch.cuda.is_available()
    loader = DataLoader(Images(index), batch_size=32, shuffle=True, num_workers=WORKERS, pin_memory=pinned)
    end = time.monotonic() + seconds
    for images, names in loader:
        (images.flatten(1) @ torch.randn(3 * IMAGE * IMAGE, 64)).sum().add(names.sum())
        if time.monotonic() > end:
            os._exit(0)  # with workers in the middle of a batch there is nothing to wait for


def list_leak(seconds):
    train([entry(i) for i in range(ENTRIES)], seconds)


def packed(seconds):
    train(np.array([entry(i) for i in range(ENTRIES)], dtype="S40"), seconds)


def kept_batches(_seconds):
    index = np.array([entry(i) for i in range(ENTRIES)], dtype="S40")
    loader = DataLoader(Images(index), batch_size=32, shuffle=True, num_workers=WORKERS)
    _kept = [images for images, _ in loader]


def deep_prefetch(seconds):
    index = np.array([entry(i) for i in range(ENTRIES)], dtype="S40")
    loader = DataLoader(Images(index), batch_size=32, shuffle=True, num_workers=WORKERS, prefetch_factor=32)
    end = time.monotonic() + seconds
    for images, _ in loader:
        images.mean().item()
        time.sleep(0.6)
        if time.monotonic() > end:
            os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    programs = (list_leak, packed, kept_batches, deep_prefetch)
    {program.__name__: program for program in programs}[sys.argv[1]](float(sys.argv[2]) if len(sys.argv) > 2 else 600.0)
