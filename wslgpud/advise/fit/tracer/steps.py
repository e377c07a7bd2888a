"""Two training steps, or a prompt and some answers, as a program would run them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from .build import Built, Job, Refused

#: answers after which the cache's gaps have stopped growing
_ANSWERS = 8


class Stage(NamedTuple):
    """What a job runs on. ``storages`` hear what memory is now taken for, and which tensors are on the card."""

    job: Job
    device: str
    storages: Any


def run(built: Built, stage: Stage) -> None:
    """Run the job on a model. Raises Refused."""
    if built.pipeline:
        built.pipeline.run(stage)
        return
    stage.storages.load(held(built.model), "weights")
    stage.storages.load(_tensors(built.batch), "activations")
    if stage.job["mode"] == "inference":
        with torch.no_grad():
            _answer(built, stage)
    else:
        train(built.model, lambda: _loss(_called(built.model, built.batch)), stage)


def held(model: Any) -> list[Any]:
    """Return a model's tensors."""
    return [*model.parameters(), *model.buffers()]


def train(model: Any, loss_of: Callable[[], Any], stage: Stage) -> None:
    """Run two training steps."""
    job, device, storages = stage
    model.train()
    optimizer = _optimizer(job["optimizer"], [p for p in model.parameters() if p.requires_grad])
    mixed = torch.autocast(device, torch.bfloat16, enabled=job["precision"] == "mixed")
    for _ in range(2):  # the optimizer's states are there from the second step on
        storages.purpose = "activations"
        with mixed:
            loss = loss_of()
        storages.purpose = "gradients"
        loss.backward()
        storages.purpose = "optimizer"
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss


def _optimizer(name: str, learning: list[Any]) -> Any:
    # torch chooses foreach only for plain tensors, which those without memory are not.
    if name in ("adamw", "adamw-fused"):
        return torch.optim.AdamW(learning, lr=1e-5, **{"fused" if name == "adamw-fused" else "foreach": True})
    if name == "adafactor":
        return torch.optim.Adafactor(learning, lr=1e-5)
    optimizer = torch.optim.SGD(learning, lr=1e-5, momentum=0.9 if name == "momentum" else 0.0, foreach=True)
    if name == "adamw8bit":
        optimizer.register_step_pre_hook(lambda *_: _take_moments_of_bytes(optimizer, learning))
    return optimizer


def _take_moments_of_bytes(optimizer: Any, learning: list[Any]) -> None:
    """8-bit AdamW: a byte per moment, and 4 for each block of 256 (arXiv:2110.02861); bitsandbytes needs a card."""
    for parameter in learning if not optimizer.state else ():
        count = parameter.numel()
        sizes = (count, count, 4 * -(-count // 256), 4 * -(-count // 256))
        moments = [torch.empty(size, dtype=torch.uint8, device=parameter.device) for size in sizes]
        optimizer.state[parameter]["moments"] = moments


def _called(model: Any, batch: Any) -> Any:
    return model(**batch) if isinstance(batch, dict) else model(*batch)


def _loss(out: Any) -> Any:
    """Return the loss of a model's output: its own, else cross entropy of logits, else a mean."""
    for name in ("loss", "logits"):
        value = getattr(out, name, None)
        out = value if isinstance(value, torch.Tensor) else out
    if isinstance(out, torch.Tensor) and out.dim() == 0:
        return out
    if isinstance(out, torch.Tensor) and out.dim() == 2:
        labels = torch.ones(out.shape[0], dtype=torch.int64, device=out.device)
        return torch.nn.functional.cross_entropy(out, labels)
    parts = [t.float().mean() for t in _tensors(out) if t.requires_grad and t.is_floating_point()]
    if not parts:
        raise Refused("the model returns nothing that can be trained")
    return sum(parts)


def _tensors(value: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _answer(built: Built, stage: Stage) -> None:
    """Answer a prompt, or call the model twice."""
    model, batch, job = built.model.eval(), built.batch, stage.job
    if not built.generates or not isinstance(batch, dict) or "decoder_input_ids" in batch:
        for _ in range(2):
            out = _called(model, batch)
            del out
        return
    answers = min(_ANSWERS, job["context"] - 1)
    accepted = inspect.signature(model.forward).parameters
    # transformers renames it now and then
    name = next((n for n in ("past_key_values", "cache_params") if n in accepted), "cache")
    few = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
    given = {**batch, "input_ids": batch["input_ids"][:, : job["context"] - answers]}
    cache = None
    for _ in range(answers):
        out = model(**given, **{name: cache}, **few, use_cache=True)
        cache = getattr(out, name, None)
        given = {"input_ids": torch.ones(job["batch"], 1, dtype=torch.int64, device=stage.device)}
        del out
