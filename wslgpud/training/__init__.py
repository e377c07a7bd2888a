"""The companion of a training, for its own Python: ``import wslgpud.training; wslgpud.training.watch()``.

Without a line of code: ``wslgpud inside -- python train.py``. For Hugging Face's Trainer and Lightning there are
``TrainerCallback`` and ``LightningCallback``. Nothing here imports anything else of ours, nor a library unless the
program has it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from wslgpud.training import frameworks
from wslgpud.training.companion import Companion, watch

__all__ = ["Companion", "environment", "watch"]

_INSIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside")


def environment(environ: Mapping[str, str], actions: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment in which every Python has the companion, which does this on a warning."""
    wanted = {"WSLGPUD_ON_WARNING": ",".join(actions)} if actions else {}
    return {**environ, **wanted, "PYTHONPATH": os.pathsep.join(filter(None, (_INSIDE, environ.get("PYTHONPATH"))))}


def __getattr__(name: str) -> Any:
    """Make the callback of a framework once it is asked for."""
    made = {"TrainerCallback": frameworks.trainer_callback, "LightningCallback": frameworks.lightning_callback}
    if name in made:
        return made[name](watch())
    raise AttributeError(name)
