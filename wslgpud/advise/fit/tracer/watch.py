"""Runs a job on shapes alone, and sees each storage that appears and ends.

FakeTensorMode runs each operation on shapes alone, a TorchDispatchMode above it sees the results.

The memory that libraries take inside an operation (cuDNN, cuBLAS), which no shapes tell, is measured. Each kind of
operation runs once on the card, alone. Its arguments and results are smaller than the model's own, and the process
never takes more than its limit; without a limit nothing is measured, and the card is not touched.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from .allocator import Allocator, Block
from .build import Built, Job, built
from .steps import Stage, run

#: more values are a weight's, which nothing looks at
_FEW_VALUES = 1 << 14
_MULTIPLY = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv")
#: modules whose matrix stays in 16 bits where the others have fewer
_HEADS = ("lm_head", "embed_out", "score")
#: operations of cuDNN, which chooses its algorithms by card, version and sizes: often more than their results
_LIBRARY = ("aten::convolution", "aten::convolution_backward")
_ATTENTION = "aten::_scaled_dot_product_"
#: operations on lists of tensors, and those whose results are as large as a mask's values say
_NEVER = ("aten::_foreach", "aten::index", "aten::nonzero", "aten::masked_select")
#: below this size of its arguments, an operation's own memory does not matter
_SMALL_BYTES = 1 << 20
_MATRIX = 512
#: cuBLAS's workspace where it is not measured: 4 x 8 MiB, as on Hopper; other cards take less
_CUBLAS_BYTES = 32 << 20
#: Blocks that an operation takes and frees, in their order: the number of a block, its bytes, or 0 when it is freed,
#: and the number of the result that it is, if it stays.
Extra = list[tuple[int, int, int | None]]


class Workspaces:
    """The extras of the operations of a model; ``unmeasured`` counts those kinds that could not be measured."""

    def __init__(self, limit_bytes: int) -> None:
        self._known = dict[str, Extra | None]()
        self.limit_bytes, self.unmeasured = limit_bytes, 0
        #: size of cuBLAS's workspace, which stays
        self.cublas_bytes = _CUBLAS_BYTES
        if limit_bytes:
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / torch.cuda.mem_get_info()[1]))
            matrix = torch.empty(_MATRIX, _MATRIX, device="cuda")
            before = torch.cuda.memory_allocated()
            product = matrix @ matrix
            self.cublas_bytes = torch.cuda.memory_allocated() - before - product.untyped_storage().nbytes()

    def of(self, func: Any, args: Any, kwargs: Any) -> Extra:
        """Return the blocks of an operation on tensors without memory, none if it is no library's or not measured."""
        library = func.name().partition(".")[0] in _LIBRARY
        if not library and not (self.limit_bytes and _may_hide(func, args)):
            return []
        sizes = tree_map_only(torch.Tensor, lambda t: (t.shape, t.stride(), t.dtype), (args, kwargs))
        key = f"{func.name()} {sizes}"
        if key not in self._known:
            self._known[key] = _measured(func, args, kwargs) if self.limit_bytes else None
            self.unmeasured += library and self._known[key] is None
        return self._known[key] or []


def _may_hide(func: Any, args: Any) -> bool:
    """Return whether an operation may take memory of its own; indices without values must not be followed.

    Masks may: a sum of one copies it in 64 bits.
    """
    tensors = [each for each in tree_leaves(args) if isinstance(each, torch.Tensor)]
    if any(result.alias_info for result in func._schema.returns) or func.name().startswith(_NEVER):
        return False
    if sum(each.numel() * each.element_size() for each in tensors) < _SMALL_BYTES:
        return False
    numbers = all(each.is_floating_point() or each.dtype == torch.bool for each in tensors)
    return numbers or func.name().startswith(_ATTENTION)


def _measured(func: Any, args: Any, kwargs: Any) -> Extra | None:
    # It reads its random state on the processor, and dies where its rule of sizes puts it: on the card.
    numbers = "cpu" if "efficient_attention" in func.name() else "cuda"

    def real(tensor: Any) -> Any:
        device = tensor.device if tensor.dim() else numbers
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)

    with unset_fake_temporarily():
        try:
            args, kwargs = tree_map_only(torch.Tensor, real, (args, kwargs))
            torch.cuda.memory._record_memory_history(max_entries=1000, context=None)
            made = tree_leaves(func(*args, **kwargs))
            history = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
        except RuntimeError:  # no room for it, or no such algorithm
            return None
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
            torch.cuda.empty_cache()
    return _extra(history, [each if isinstance(each, torch.Tensor) else None for each in made])


def _extra(history: Any, results: list[Any]) -> Extra:
    """Return the blocks in an allocator's history; libraries' workspaces, which stay, are not the operation's."""
    steps, blocks = list[tuple[int, int]](), dict[int, int]()
    for event in history:
        if event["action"] == "alloc":
            blocks[event["addr"]] = len(steps)
            steps.append((len(steps), event["size"]))
        elif event["action"] == "free_completed" and event["addr"] in blocks:
            steps.append((blocks.pop(event["addr"]), 0))
    places = {each.untyped_storage().data_ptr(): n for n, each in enumerate(results) if each is not None}
    kept = {block: places[address] for address, block in blocks.items() if address in places}
    others = set(blocks.values()) - set(kept)
    extra = [(block, size, kept.get(block)) for block, size in steps if block not in others]
    return extra if len(extra) > len(kept) else []


class Storages(Allocator):
    """The blocks of storages. One may end while another is taken, so that its block is given back before the next."""

    def __init__(self, device: str, packed_sizes: Mapping[int, int]) -> None:
        """``packed_sizes`` are those of storages that have fewer bits on the card than here."""
        super().__init__()
        self._device, self._packed_sizes = device, packed_sizes
        self._blocks, self._ended = dict[int, Block](), deque[Block]()

    def saw(self, storage: Any, size: int) -> None:
        if size and storage._cdata not in self._blocks:
            self._blocks[storage._cdata] = self.take(size)
            weakref.finalize(storage, self._end, storage._cdata).atexit = False

    def take(self, size: int) -> Block:
        self._settle()
        return super().take(size)

    def repeat(self, extra: Extra, results: list[Any]) -> None:
        """The blocks of an operation; those that stay are its results."""
        blocks = dict[int, Block]()
        for number, size, result in extra:
            if not size:
                self.give(blocks[number])
            elif result is not None and (storage := results[result]) is not None:
                self.saw(storage, size)
            else:
                blocks[number] = self.take(size)

    def load(self, tensors: list[Any], purpose: str) -> list[int]:
        """These tensors are on the card from now on; return their storages for ``unload``."""
        self.purpose = purpose
        storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == self._device]
        for storage in storages:
            self.saw(storage, self._packed_sizes.get(storage._cdata, storage.nbytes()))
        return [storage._cdata for storage in storages]

    def unload(self, keys: list[int]) -> None:
        """These storages move to RAM, and the cache is emptied."""
        for key in keys:
            self._end(key)
        if keys:
            self._settle()
            self.empty_cache()

    def _end(self, key: int) -> None:
        if block := self._blocks.pop(key, None):
            self._ended.append(block)

    def _settle(self) -> None:
        while self._ended:
            self.give(self._ended.popleft())


def packed_sizes_of(models: list[Any], job: Job) -> dict[int, int]:
    """Return the size of each matrix with fewer bits, by its storage. It runs in 16 bits, since only sizes count."""
    sizes = dict[int, int]()
    if not job.get("weight_bytes"):
        return sizes
    for name, module in chain.from_iterable(model.named_modules() for model in models):
        if "lora_" in name or name.rpartition(".")[2] in _HEADS:
            continue
        for parameter in module.parameters(recurse=False):
            matrix = isinstance(module, torch.nn.Linear) and parameter.dim() == 2 and not job.get("experts_only")
            if matrix or parameter.dim() == 3:
                sizes[parameter.untyped_storage()._cdata] = round(parameter.numel() * job["weight_bytes"])
    return sizes


def _moved(self: Any, change: Any, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002 - as torch has it
    """``Module._apply`` without swapping parameters, as FakeTensorMode still refers to them."""
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


def run_by_data(func: Any, args: Any, purpose: str) -> Any:
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


def built_on_shapes(job: Job, device: str, mode: Any) -> Built:
    """Return a job's model without memory. Small sums on the processor, such as the widths of layers, are real."""

    class OffCard(TorchDispatchMode):  # type: ignore[misc]  # torch is not read by mypy
        """Skips initial values, which take long, and memory; tensors on the card have none either."""

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
        made = built(job, "meta")
    with mode:
        made.model._apply(placed)
        return made._replace(batch=tree_map_only(torch.Tensor, placed, made.batch))


def _drop_as_on_a_card() -> None:
    """Have the processor keep a byte for each number that may be dropped, and no scores of attention, as cards do."""
    functional, attention = torch.nn.functional, torch.nn.functional.scaled_dot_product_attention

    def attended(query: Any, key: Any, value: Any, *given: Any, **named: Any) -> Any:
        options = dict(zip(("attn_mask", "dropout_p", "is_causal"), given, strict=False)) | named
        return attention(query, key, value, **options | {"dropout_p": 0.0})

    def dropped(value: Any, p: float = 0.5, training: Any = True, inplace: Any = False) -> Any:  # noqa: FBT002 - as torch
        return torch.native_dropout(value, p, True)[0] if training and p and not inplace else value

    functional.scaled_dot_product_attention, functional.dropout = attended, dropped


def _watch(device: str, storages: Storages, workspaces: Workspaces, unpacked: Collection[int]) -> Any:
    """Return the mode that sees the results of each operation; ``unpacked`` storages are copied when multiplied."""
    waiting = {"activations", "gradients"}

    class Watch(TorchDispatchMode):  # type: ignore[misc]  # torch is not read by mypy
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = run_by_data(func, args, storages.purpose)
            out = func(*args, **(kwargs or {})) if out is None else out
            multiplies, purpose = func.name().partition(".")[0] in _MULTIPLY, storages.purpose
            for each in args if multiplies and unpacked else ():
                if isinstance(each, torch.Tensor) and each.untyped_storage()._cdata in unpacked:
                    storages.give(storages.take(each.untyped_storage().nbytes()))
            results = [
                each.untyped_storage() if isinstance(each, FakeTensor) and each.device.type == device else None
                for each in tree_leaves(out)
            ]
            storages.repeat(workspaces.of(func, args, kwargs or {}), results)
            for storage in results:
                if storage is not None:
                    storages.saw(storage, storage.nbytes())
            # cuBLAS makes a workspace for each thread that multiplies: ours, and that of the backward pass.
            if multiplies and purpose in waiting:
                waiting.remove(purpose)
                storages.purpose = "CUDA itself"
                storages.take(workspaces.cublas_bytes)
                storages.purpose = purpose
            return out

    return Watch()


def traced(job: Job, device: str) -> dict[str, Any]:
    """Run a job on shapes alone; return its memory, as ``asking.py`` reads it.

    Raises Refused, or any error of torch or the model.
    """
    torch.nn.Module._apply = _moved
    # It compares values. A square mask is a causal one nearly always.
    torch.nn.modules.transformer._detect_is_causal_mask = lambda mask, *_: mask is not None and mask.dim() == 2
    if device == "cpu":
        _drop_as_on_a_card()
    workspaces = Workspaces(job.get("measure_bytes") or 0)
    # A kernel without a rule of its sizes would run for real.
    mode = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
    # Loading is not watched: weights are as they are when it is done.
    made = built_on_shapes(job, device, mode)
    packed = packed_sizes_of(made.pipeline.packed() if made.pipeline else [made.model], job)
    storages = Storages(device, packed)
    # Layers are left out at random (layerdrop): here, none is.
    random = torch.rand
    torch.rand = lambda *size, **more: torch.tensor(0.5) if size in ((), ([],), ((),)) else random(*size, **more)
    with mode, _watch(device, storages, workspaces, packed if job.get("unpacking") else ()):
        run(made, Stage(job, device, storages))
    measured, count = bool(workspaces.limit_bytes), sum(p.numel() for p in made.model.parameters())
    facts = {"measured": measured, "unmeasured": workspaces.unmeasured, "torch": torch.__version__}
    return {**facts, "reserved_bytes": storages.reserved_bytes, "used": storages.peak, "parameters": count}
