"""Measures the memory that libraries take inside an operation (cuDNN, cuBLAS), which no shapes tell.

Each kind of operation runs once on the card, alone. Its arguments and results are smaller than the model's own, and the
process never takes more than its limit; without a limit nothing is measured, and the card is not touched.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves, tree_map_only

#: operations of cuDNN, which chooses its algorithms by card, version and sizes: often more than their results
_LIBRARY = ("aten::convolution", "aten::convolution_backward")
_ATTENTION = "aten::_scaled_dot_product_"
#: lists of tensors, and what takes as much as its mask has values
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
