"""Weights of fewer bits: matrices are counted at their packed size, and unpacked one at a time where that is done.

Nothing is quantized: the model runs in 16 bits, since only sizes count.
"""

from __future__ import annotations

from typing import Any

_ADD_AND_MULTIPLY = ("aten::mm", "aten::addmm", "aten::bmm")


class Packed:
    """The packed matrices of a model. ``ratio``: bytes of a weight; 0: nothing is packed."""

    def __init__(self, torch: Any, models: list[Any], job: dict[str, Any]) -> None:
        self._unpacking = bool(job.get("unpacking"))
        self._sizes: dict[int, int] = {}
        modules = (named for model in models for named in model.named_modules())
        for name, module in modules if job.get("weight_bytes") else ():
            if "lora_" in name or name.rpartition(".")[2] in ("lm_head", "embed_out", "score"):
                continue
            for parameter in module.parameters(recurse=False):
                matrix = isinstance(module, torch.nn.Linear) and parameter.dim() == 2
                if parameter.dim() == 3 if job.get("experts_only") else matrix or parameter.dim() == 3:
                    self._sizes[parameter.untyped_storage()._cdata] = round(parameter.numel() * job["weight_bytes"])

    def size(self, storage: Any) -> int:
        """Return the bytes of a storage on the card."""
        return int(self._sizes.get(storage._cdata, storage.nbytes()))

    def unpacked_bytes(self, torch: Any, func: Any, args: Any) -> int:
        """Return the bytes of the copy in 16 bits that a multiplication works on, 0 if it needs none."""
        if not self._unpacking or func.name().partition(".")[0] not in _ADD_AND_MULTIPLY:
            return 0
        storages = (each.untyped_storage() for each in args if isinstance(each, torch.Tensor))
        return max((storage.nbytes() for storage in storages if storage._cdata in self._sizes), default=0)
