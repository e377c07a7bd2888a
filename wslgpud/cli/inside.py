"""``wslgpud inside -- CMD``: a training whose steps the daemon sees."""

from __future__ import annotations

import os
from typing import Annotated

from wslgpud import training
from wslgpud.cli.common import argument, refused


def inside(command: Annotated[list[str], argument("COMMAND", "program to run, with its arguments")]) -> None:
    """Run a PyTorch training so that the daemon sees what it keeps with each step.

    In every Python of the command, the steps of PyTorch's optimizers are counted, and what is in use after them is
    told to the daemon, which names a leak hours before the memory is full. Hugging Face's Trainer and Lightning save a
    checkpoint when it warns; other programs get a call by wslgpud.training.watch(on_memory_warning=...).

    Examples:
        wslgpud inside -- python train.py
        wslgpud inside -- torchrun --nproc-per-node 2 train.py
        wslgpud guard --inside -- python train.py  # with a log and the peaks at the end
    """
    with refused("cannot start {path}: {why}", path=command[0]):
        os.execvpe(command[0], command, training.environment(os.environ))  # noqa: S606 - what the user has named
