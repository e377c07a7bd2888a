"""The companion of a training, for its own Python: ``import wslgpud.training; wslgpud.training.watch()``.

Without a line of code: ``wslgpud inside -- python train.py``. For Hugging Face's Trainer and Lightning there are
``TrainerCallback`` and ``LightningCallback``. Nothing here imports other modules of ours, nor a library that the
program has not loaded.
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
    """Return the environment in which every Python loads the companion, with these actions on a warning."""
    wanted = {"WSLGPUD_ON_WARNING": ",".join(actions)} if actions else {}
    return {**environ, **wanted, "PYTHONPATH": os.pathsep.join(filter(None, (_INSIDE, environ.get("PYTHONPATH"))))}


def __getattr__(name: str) -> Any:
    """Create a framework's callback class on first use."""
    made = {"TrainerCallback": frameworks.trainer_callback, "LightningCallback": frameworks.lightning_callback}
    if name in made:
        return made[name](watch())
    raise AttributeError(name)
