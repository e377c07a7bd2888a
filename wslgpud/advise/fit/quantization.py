"""The quantization in a config.json, in ``fit``'s names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wslgpud.words import MessageError, say


class ShapeError(MessageError):
    """The shape is unknown; the message says what is missing."""


#: by quantization method in ``quantization_config``: its formats and ``fit``'s names
_STORED = {
    "bitsandbytes": {"4": "int4", "8": "int8"},
    "fp8": {"8": "fp8"},
    "fbgemm_fp8": {"8": "fp8"},
    "mxfp4": {"4": "mxfp4"},
    "gptq": {"4": "gptq", "8": "gptq8"},
    "awq": {"4": "awq"},
    "auto-round": {"4": "gptq", "8": "gptq8"},
    "hqq": {"4": "gptq", "8": "gptq8"},
    "modelopt": {"nvfp4": "nvfp4", "fp8": "fp8"},
    "compressed-tensors": {"int4": "gptq", "int8": "gptq8", "float8": "fp8", "float4": "nvfp4"},
    "torchao": {"int4": "gptq", "int8": "int8", "float8": "fp8"},
}


def stored(quantization: object) -> str:
    """Return the precision of the weights in a config.json, in ``fit``'s names.

    Raises:
        ShapeError: it is one that ``fit`` does not know.
    """
    if not isinstance(quantization, Mapping):
        return ""
    method = str(quantization.get("quant_method", "")).lower().removeprefix("intel/")
    known, form = _STORED.get(method, {}), _form(method, quantization)
    if name := next((name for said, name in known.items() if form.startswith(said)), ""):
        return name
    bits = quantization.get("bits")
    kind = say("{method}, {bits} bits", method=method, bits=str(bits)) if bits else method
    raise ShapeError(
        "config.json names a quantization that fit does not know ({kind}): use the original model", kind=kind or "?"
    )


def _form(method: str, quantization: Mapping[str, Any]) -> str:
    """Return the storage format of the weights, in the quantizer's names."""

    def within(*path: str) -> Any:
        found: Any = quantization
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    if method == "bitsandbytes":
        return "4" if quantization.get("load_in_4bit") else "8"
    if method == "compressed-tensors":
        groups = within("config_groups")
        weights = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
        weights = weights.get("weights") if isinstance(weights, Mapping) else None
        return f"{weights.get('type', 'int')}{weights.get('num_bits')}" if isinstance(weights, Mapping) else ""
    if method == "torchao":
        kind = within("quant_type")
        kind = next(iter(kind.values()), "") if isinstance(kind, Mapping) else kind
        kind = kind.get("_type", "") if isinstance(kind, Mapping) else kind
        return str(kind).lower()
    if method == "modelopt":
        return str(within("quant_algo") or within("quantization", "quant_algo")).lower()
    usual = {"fp8": "8", "fbgemm_fp8": "8", "mxfp4": "4", "awq": "4"}.get(method, "")
    return str(within("quant_config", "weight_quant_params", "nbits") or quantization.get("bits") or usual)
