"""The companion of a training, for its own Python: ``import wslgpud.training; wslgpud.training.watch()``.

Without a line of code: ``wslgpud inside -- python train.py``. For Hugging Face's Trainer and Lightning there are
``TrainerCallback`` and ``LightningCallback``. Nothing here imports other modules of ours, nor a library that the
program has not loaded.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from typing import Any

from wslgpud.training import frameworks
from wslgpud.training.companion import Companion, watch

__all__ = ["Companion", "SaveOnSignal", "environment", "watch"]

_INSIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside")


class SaveOnSignal:
    """For programs that only want to notice the daemon's request to save a checkpoint, a signal. Copy it or import it.

        asked = SaveOnSignal()                      # before the loop, in the main thread
        for step, batch in enumerate(batches):
            train(batch)
            if asked():                             # between two steps: nothing is half done
                torch.save({"step": step, "model": model.state_dict(),
                            "optimizer": optimizer.state_dict()}, "checkpoint.pt")

    It counts requests; calling it tells whether one has come since the last call. Worker processes of a data loader
    inherit the handler and may be asked, too; they do nothing.
    """

    def __init__(self, number: int = signal.SIGUSR1) -> None:
        """Catch the signal from now on; ValueError: this is not the main thread."""
        self._pending = False
        signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self._pending = True

    def __call__(self) -> bool:
        """Return True once for the requests since the last call."""
        if not self._pending:  # one that comes from here on is kept for the next call
            return False
        self._pending = False
        return True


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
