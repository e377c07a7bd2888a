"""The companion in Hugging Face's Trainer and in Lightning: a checkpoint when the daemon warns, figures of the batch.

``attach`` adds the callbacks to every trainer that the program makes; ``trainer_callback`` and ``lightning_callback``
return them for those who add them by themselves. A file of its own, as ``companion`` is.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

#: the modules that hold the trainers, by the companies' old and new names
_TRANSFORMERS = "transformers.trainer"
_LIGHTNING = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


class _Wanted:
    """Whether a checkpoint is wanted; the next step that ends takes it."""

    def __init__(self, companion: Any) -> None:
        self._wanted = False
        companion.on_warning(self._note)

    def _note(self, *_: Any) -> None:
        self._wanted = True

    def taken(self) -> bool:
        wanted, self._wanted = self._wanted, False
        return wanted


def attach(companion: Any) -> None:
    """Have all trainers from now on save a checkpoint when the daemon warns."""
    companion.after_import(_TRANSFORMERS, functools.partial(_to_transformers, companion))
    for name in _LIGHTNING:
        companion.after_import(name, functools.partial(_to_lightning, companion))


def trainer_callback(companion: Any, base: Any = None) -> Any:
    """Return a callback for Hugging Face's Trainer, and those made from it (TRL's)."""
    wanted = _Wanted(companion)

    class WslgpudCallback(base or import_module("transformers").TrainerCallback):  # type: ignore[misc]  # made when there
        """Saves a checkpoint at the end of the step in which the daemon has warned."""

        def on_train_begin(self, args: Any, *_: Any, **__: Any) -> None:
            companion.facts["batch"] = args.per_device_train_batch_size

        def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> Any:
            control.should_save = control.should_save or wanted.taken()
            return control

    return WslgpudCallback


def lightning_callback(companion: Any, base: Any = None) -> Any:
    """Return a callback for Lightning's Trainer."""
    wanted = _Wanted(companion)

    class WslgpudCallback(base or import_module("lightning.pytorch").Callback):  # type: ignore[misc]  # same
        """Saves a checkpoint after the batch in which the daemon has warned."""

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            if wanted.taken():
                trainer.save_checkpoint(f"{trainer.default_root_dir}/wslgpud-step-{trainer.global_step}.ckpt")

    return WslgpudCallback


def _to_transformers(companion: Any, module: Any) -> None:
    module.DEFAULT_CALLBACKS.append(trainer_callback(companion, module.TrainerCallback))


def _to_lightning(companion: Any, module: Any) -> None:
    begin = module.Trainer.__init__

    @functools.wraps(begin)
    def made(self: Any, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        self.callbacks.append(lightning_callback(companion, module.Callback)())

    module.Trainer.__init__ = made
