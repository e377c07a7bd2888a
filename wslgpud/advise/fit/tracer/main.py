"""Says how much memory a model takes while it trains or answers; its weights are never there.

The job comes as one line of JSON on standard input. The only line of output is an object: what is in use at the peak by
purpose, and what the allocator reserves; or ``error``.

FakeTensorMode runs each operation on shapes alone, a TorchDispatchMode above it sees what each returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import weakref
from typing import Any

from .allocator import EMPTIED, held
from .build import Built, Job, built
from .quantized import Packed
from .steps import Stage, run
from .workspaces import Extra, Workspaces

CUDA = "CUDA itself"
#: more values are a weight's, which nothing looks at
_FEW_VALUES = 1 << 14
_MULTIPLY = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv")


class StorageLog:
    """The events of a trace, see ``allocator.held``; a storage may end while another is being recorded."""

    def __init__(self, device: str, packed: Packed) -> None:
        self.events, self.purpose, self._device, self._packed = list[str | int](), "", device, packed
        self._places, self._count = dict[int, int](), 0

    def phase(self, name: str) -> None:
        if name != self.purpose:
            self.events.append(name)
            self.purpose = name

    def saw(self, storage: Any, size: int) -> None:
        key = storage._cdata
        if size and key not in self._places:
            self._places[key] = self.take(size)
            weakref.finalize(storage, self.gone, key).atexit = False

    def repeat(self, extra: Extra, results: list[Any]) -> None:
        """The blocks of an operation; those that stay are its results."""
        places = dict[int, int]()
        for block, size in extra.steps:
            if not size:
                self.events.append(-places[block])
            elif block in extra.results and (storage := results[extra.results[block]]) is not None:
                self.saw(storage, size)
            else:
                places[block] = self.take(size)

    def gone(self, key: int) -> None:
        if key in self._places:
            self.events.append(-self._places.pop(key))

    def load(self, tensors: list[Any]) -> list[int]:
        """These tensors are on the card from now on; return their storages for ``unload``."""
        storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == self._device]
        for storage in storages:
            self.saw(storage, self._packed.size(storage))
        return [storage._cdata for storage in storages]

    def unload(self, keys: list[int]) -> None:
        """These storages move to RAM, and the cache is emptied."""
        for key in keys:
            self.gone(key)
        if keys:
            self.phase(EMPTIED)

    def take(self, size: int) -> int:
        """A block that stays; return its place."""
        self.events.append(size)
        self._count += 1
        return self._count - 1


def _mover(torch: Any) -> Any:
    """Return a Module._apply() that does not swap parameters, as FakeTensorMode still refers to them."""

    def moved(self: Any, change: Any, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002 - as torch has it
        new: dict[int, Any] = {}
        for module in self.modules() if recurse else [self]:
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None and id(tensor) not in new:
                        there = change(tensor.detach())
                        if isinstance(tensor, torch.nn.Parameter):
                            there = torch.nn.Parameter(there, requires_grad=tensor.requires_grad)
                        new[id(tensor)] = there
                    tensors[name] = new.get(id(tensor))
        return self

    return moved


def run_by_data(torch: Any, func: Any, args: Any, purpose: str) -> Any:
    """Return the result of an operation whose size depends on data, at its largest; None: it does not."""
    name = func.name().partition(".")[0]
    if name == "aten::_local_scalar_dense" and purpose == "optimizer" and args[0].is_floating_point():
        return 1.0  # a norm that scales a step
    if name == "aten::nonzero":
        return args[0].new_empty((args[0].numel(), args[0].dim()), dtype=torch.int64)
    indices = args[1] if name in ("aten::index", "aten::index_put", "aten::index_put_") else ()
    masks = [each for each in indices if each is not None and each.dtype in (torch.bool, torch.uint8)]
    if not masks:
        return None
    if name == "aten::index":
        whole = len(masks) == len(indices)
        return args[0].new_empty((masks[0].numel(), *args[0].shape[masks[0].dim() :])) if whole else None
    return args[0] if name == "aten::index_put_" else args[0].clone()


def built_on_shapes(torch: Any, job: Job, device: str, mode: Any) -> Built:
    """Return a job's model without memory. Small sums on the processor, such as the widths of layers, are real."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map_only

    class OffCard(TorchDispatchMode):  # type: ignore[misc]  # torch is not read by mypy
        """Skips initial values, which take long, and memory; what is put on the card is not there either."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs, first = kwargs or {}, args[0] if args else None
            filled = func._schema.name.endswith("_") and torch.Tag.inplace_view not in func.tags
            if filled and isinstance(first, torch.Tensor) and first.numel() > _FEW_VALUES:
                return first
            on_card = torch.device(kwargs.get("device") or "cpu").type == "cuda"
            with mode if on_card else contextlib.nullcontext():
                return func(*args, **kwargs)

    def placed(value: Any) -> Any:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)

    with OffCard():
        made = built(torch, job, "meta")
    with mode:
        made.model._apply(placed)
        return made._replace(batch=tree_map_only(torch.Tensor, placed, made.batch))


def _drop_as_on_a_card(torch: Any) -> None:
    """Have the processor keep a byte for each number that may be dropped, and no scores of attention, as cards do."""
    functional, attention = torch.nn.functional, torch.nn.functional.scaled_dot_product_attention

    def attended(query: Any, key: Any, value: Any, attn_mask: Any = None, _: float = 0.0, **more: Any) -> Any:
        more.pop("dropout_p", None)
        return attention(query, key, value, attn_mask, **more)

    def dropped(value: Any, p: float = 0.5, training: Any = True, inplace: Any = False) -> Any:  # noqa: FBT002 - as torch
        return torch.native_dropout(value, p, True)[0] if training and p and not inplace else value

    functional.scaled_dot_product_attention, functional.dropout = attended, dropped


def _watch(torch: Any, device: str, log: StorageLog, workspaces: Workspaces, packed: Packed) -> Any:
    """Return the mode that sees what each operation returns."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    waiting = {"activations", "gradients"}

    class Watch(TorchDispatchMode):  # type: ignore[misc]  # torch is not read by mypy
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = run_by_data(torch, func, args, log.purpose)
            out = func(*args, **(kwargs or {})) if out is None else out
            if passing := packed.unpacked_bytes(torch, func, args):
                log.events.append(-log.take(passing))
            results = [
                each.untyped_storage() if isinstance(each, FakeTensor) and each.device.type == device else None
                for each in tree_leaves(out)
            ]
            if extra := workspaces.of(func, args, kwargs or {}):
                log.repeat(extra, results)
            for storage in results:
                if storage is not None:
                    log.saw(storage, storage.nbytes())
            # cuBLAS makes a workspace for each thread that multiplies: ours, and that of the backward pass.
            if (purpose := log.purpose) in waiting and func.name().partition(".")[0] in _MULTIPLY:
                waiting.remove(purpose)
                log.phase(CUDA)
                log.take(workspaces.cublas_bytes)
                log.phase(purpose)
            return out

    return Watch()


def traced(torch: Any, job: Job, device: str) -> tuple[Built, Workspaces, StorageLog]:
    """Run a job on shapes alone; return its model and storages. Raises Refused, or what torch or the model raises."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch.nn.Module._apply = _mover(torch)
    # It compares values. A square mask is a causal one nearly always.
    torch.nn.modules.transformer._detect_is_causal_mask = lambda mask, *_: mask is not None and mask.dim() == 2
    if device == "cpu":
        _drop_as_on_a_card(torch)
    workspaces = Workspaces(torch, job.get("measure_bytes") or 0)
    # A kernel without a rule of its sizes would run for real.
    mode = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
    # Loading is not watched: weights are as they are when it is done.
    made = built_on_shapes(torch, job, device, mode)
    packed = Packed(torch, made.pipeline.packed() if made.pipeline else [made.model], job)

    log = StorageLog(device, packed)
    # Layers are left out at random (layerdrop): here, none is.
    random = torch.rand
    torch.rand = lambda *size, **more: torch.tensor(0.5) if size in ((), ([],), ((),)) else random(*size, **more)
    with mode, _watch(torch, device, log, workspaces, packed):
        run(made, Stage(torch, job, device, log))
    return made, workspaces, log


def main() -> None:
    """Trace the job on standard input."""
    job = json.loads(sys.stdin.readline())
    resource.setrlimit(resource.RLIMIT_DATA, (job["memory_bytes"],) * 2)
    # What a user's code prints must not look like a line of ours.
    sys.stdout, output = sys.stderr, sys.stdout
    os.environ["PYTORCH_JIT"] = "0"  # a compiled function would run on memory that is not there
    last: dict[str, Any] = {"measured": bool(job["measure_bytes"])}
    try:
        import torch

        # Without leave to measure, the card is not touched: a backward pass on its device would open it.
        made, workspaces, log = traced(torch, job, "cuda" if last["measured"] else "cpu")
        last |= {"unmeasured": workspaces.unmeasured, "torch": torch.__version__, **held(log.events)._asdict()}
        last["parameters"] = sum(p.numel() for p in made.model.parameters())
    except BaseException as error:  # noqa: BLE001 - a user's code may raise anything, and the parent must hear of it
        last = {"error": type(error).__name__, "why": str(error).strip().partition("\n")[0][:500]}
    print(json.dumps(last), file=output, flush=True)
    # Storages end with the interpreter, which is of no interest.
    os._exit(0)
