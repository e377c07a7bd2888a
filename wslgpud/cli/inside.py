"""``wslgpud inside -- CMD``: a training whose steps the daemon sees."""

from __future__ import annotations

import os
from typing import Annotated

from wslgpud import training
from wslgpud.cli.common import Fault, argument, option, refused
from wslgpud.training.frameworks import ACTIONS


def inside(
    command: Annotated[list[str], argument("COMMAND", "program to run, with its arguments")],
    on_warning: Annotated[
        str, option("--on-warning", "ACTIONS", "on a warning: save, drop-cache, halve-batch, with commas between")
    ] = "save",
) -> None:
    """Run a PyTorch training so that the daemon sees the memory that it retains with each step.

    In every Python of the command, the steps of PyTorch's optimizers are counted, and the memory in use after each is
    reported to the daemon, which detects a leak hours before memory is full. Hugging Face's Trainer and Lightning save
    a checkpoint when it warns; other programs get a call by wslgpud.training.watch(on_memory_warning=...). drop-cache
    frees PyTorch's unused cache; halve-batch makes Trainer process each batch in two parts from then on, with the same
    gradients.

    Examples:
        wslgpud inside -- python train.py
        wslgpud inside --on-warning save,halve-batch -- python train.py
        wslgpud inside -- torchrun --nproc-per-node 2 train.py
        wslgpud guard --inside -- python train.py  # with a log and the peaks at the end
    """
    actions = on_warning.split(",")
    if unknown := set(actions) - set(ACTIONS):
        known = ", ".join(ACTIONS)
        raise Fault("--on-warning {action}: write {known}, with commas between", action=min(unknown), known=known)
    with refused("cannot start {path}: {why}", path=command[0]):
        os.execvpe(command[0], command, training.environment(os.environ, actions))  # noqa: S606 - what the user has named
