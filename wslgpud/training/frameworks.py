"""The companion in Hugging Face's Trainer and in Lightning: actions on a warning, figures of the batch.

``attach`` adds them to every trainer that the program creates; ``trainer_callback`` and ``lightning_callback`` return
callbacks that save a checkpoint, to be added explicitly. Self-contained, as ``companion`` is.
"""

from __future__ import annotations

import functools
import gc
import logging
import sys
from importlib import import_module
from typing import Any

log = logging.getLogger("wslgpud.training")

#: Actions on a warning. Any program: free the allocator's cache. Trainer and Lightning: save a checkpoint. Trainer:
#: process each batch in two halves from then on, with the same gradients.
ACTIONS = ("save", "drop-cache", "halve-batch")
#: the modules with the trainers, by their old and new names
_TRANSFORMERS = "transformers.trainer"
_LIGHTNING = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
#: settings of the longest sequence: TRL's, by its new and its old name
_MAX_LENGTH_NAMES = ("max_length", "max_seq_length")


def _warnings(companion: Any) -> list[Any]:
    """Return the warnings to come; the next step that ends saves a checkpoint."""
    warnings: list[Any] = []
    companion.on_warning(lambda *warning: warnings.append(warning))
    return warnings


def attach(companion: Any, actions: Any = ("save",)) -> None:
    """Make all trainers from now on do this when the daemon warns."""
    if "drop-cache" in actions:
        companion.on_warning(drop_cache)
    if "save" in actions:
        companion.after_import(_TRANSFORMERS, functools.partial(_to_transformers, companion))
        for name in _LIGHTNING:
            companion.after_import(name, functools.partial(_to_lightning, companion))
    batches = Batches(companion)
    if "halve-batch" in actions:
        companion.on_warning(batches.halve)
    companion.after_import(_TRANSFORMERS, batches.of)


def drop_cache(*_: Any) -> None:
    """Free the unused cache of PyTorch's allocator."""
    gc.collect()
    sys.modules["torch"].cuda.empty_cache()


class Batches:
    """The batches of Hugging Face's Trainer: their size, and the number of parts in which each is processed."""

    def __init__(self, companion: Any) -> None:
        self._companion, self.parts = companion, 1

    def halve(self, *_: Any) -> None:
        """Process batches in parts half as large from the next one on: in twice as many."""
        self.parts *= 2

    def of(self, module: Any) -> None:
        """Inspect each batch of every trainer of ``transformers.trainer``, and process it in parts."""
        step = module.Trainer.training_step

        @functools.wraps(step)
        def training_step(trainer: Any, model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
            try:
                self._note(trainer, inputs)
            except Exception as error:  # an older or custom trainer must not fail because of this
                log.debug("this batch is not reported: %r", error)
            # Without it, as in older versions, means cannot be averaged; and DeepSpeed counts passes.
            steps: Any = getattr(trainer, "current_gradient_accumulation_steps", None)
            whole = steps is None or getattr(trainer, "is_deepspeed_enabled", False)
            whole = whole or has_peers(getattr(trainer, "args", None))
            parts = split(inputs, 1 if whole else self.parts)
            if len(parts) < 2:
                return step(trainer, model, inputs, *more, **named)
            # Mean losses must be averaged over the parts; sums over all items of a batch add up unchanged.
            trainer.current_gradient_accumulation_steps = steps * len(parts)
            try:
                return sum(step(trainer, model, part, *more, **named) for part in parts)
            finally:
                trainer.current_gradient_accumulation_steps = steps

        module.Trainer.training_step = training_step

    def _note(self, trainer: Any, inputs: Any) -> None:
        facts = self._companion.facts
        facts["batch"] = int(trainer.args.per_device_train_batch_size)
        tokens: Any = inputs.get("input_ids") if hasattr(inputs, "get") else None
        if getattr(tokens, "ndim", 0) == 2:
            facts["tokens"] = facts.get("tokens", 0) + int(tokens.numel())
            facts["length"] = max(int(tokens.shape[1]), facts.get("length", 0))
            longest = next((value for name in _MAX_LENGTH_NAMES if (value := getattr(trainer.args, name, None))), None)
            if longest:
                facts["longest"] = int(longest)


def split(inputs: Any, parts: int) -> list[Any]:
    """Return a batch in at most this many parts, none empty; a batch that cannot be split is one part."""
    tensors = inputs.values() if isinstance(inputs, dict) else ()
    sizes = {one.shape[0] if getattr(one, "ndim", 0) else 0 for one in tensors}
    rows = sizes.pop() if len(sizes) == 1 else 0
    each = -(-rows // parts)
    if each == rows:
        return [inputs]
    return [{name: one[at : at + each] for name, one in inputs.items()} for at in range(0, rows, each)]


def has_peers(run: Any) -> bool:
    """Return whether other processes train the same model, given Trainer's arguments or Lightning's trainer.

    They wait for one another in each pass and whenever they save. A warning reaches each at another step, or only one:
    acting alone it would hang them all.
    """
    return int(getattr(run, "world_size", 1)) > 1


def _must_save(warnings: list[Any], run: Any) -> bool:
    """Return whether to save a checkpoint now, once for the warnings so far."""
    warned = bool(warnings)
    warnings.clear()
    if warned and has_peers(run):
        log.warning("memory runs short, but no checkpoint is saved: this training has several processes")
        return False
    return warned


def trainer_callback(companion: Any, base: Any = None) -> Any:
    """Return a callback for Hugging Face's Trainer, and those derived from it (TRL's)."""
    warnings = _warnings(companion)

    class WslgpudCallback(base or import_module("transformers").TrainerCallback):  # type: ignore[misc]  # made when there
        """Saves a checkpoint at the end of the step in which the daemon has warned."""

        def on_step_end(self, args: Any, _state: Any, control: Any, **_: Any) -> Any:
            control.should_save = _must_save(warnings, args) or control.should_save
            return control

    return WslgpudCallback


def lightning_callback(companion: Any, base: Any = None) -> Any:
    """Return a callback for Lightning's Trainer."""
    warnings = _warnings(companion)

    class WslgpudCallback(base or import_module("lightning.pytorch").Callback):  # type: ignore[misc]  # same
        """Saves a checkpoint after the batch in which the daemon has warned."""

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            if _must_save(warnings, trainer):
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
