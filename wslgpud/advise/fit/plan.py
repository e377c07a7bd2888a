"""The intended use of a model, and the memory that it takes, part by part. Pure; bytes throughout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from wslgpud.words import MessageError, MessageLike

Mode = Literal["inference", "lora", "training"]
Optimizer = Literal["adamw", "adamw-fused", "adamw8bit", "adafactor", "momentum", "sgd"]

#: Bytes of a weight.
#: - bitsandbytes: int8 with a scale for each row (arXiv:2208.07339); int4 is NF4 with double quantization:
#:   4.127 bits (QLoRA, arXiv:2305.14314, 3).
#: - GPTQ and AWQ: for each 128 weights a scale of 16 bits and a zero of as many bits as a weight has
#:   (arXiv:2210.17323; the packing is https://github.com/casper-hansen/AutoAWQ's).
#: - MXFP4: 4 bits and 8 for each 32 weights (OCP Microscaling Formats 1.0, 5.1); NVFP4: 4 bits and 8 for each 16.
#: - GGUF: bits a weight of the whole model, as llama.cpp lists them for Llama 3.1 8B, embeddings included:
#:   https://github.com/ggml-org/llama.cpp/blob/master/tools/quantize/README.md.
PLAIN = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "mixed": 4.0}
_GROUPED = {"gptq": (4 + 20 / 128) / 8, "awq": (4 + 20 / 128) / 8, "gptq8": (8 + 24 / 128) / 8}
_BLOCKS = {"fp8": 1.0, "mxfp4": (4 + 8 / 32) / 8, "nvfp4": (4 + 8 / 16) / 8, "int8": 1.01, "int4": 4.127 / 8}
_LLAMA_CPP = {"q4_k_m": 4.8944 / 8, "q5_k_m": 5.7036 / 8, "q6_k": 6.5633 / 8, "q8_0": 8.5008 / 8}
WEIGHT_BYTES: Mapping[str, float] = {**PLAIN, **_BLOCKS, **_GROUPED, **_LLAMA_CPP}
PRECISIONS = tuple(WEIGHT_BYTES)
GGUF = frozenset(_LLAMA_CPP)
#: Precisions of weights that are not trained; all but llama.cpp's allow adapters.
QUANTIZED = frozenset(WEIGHT_BYTES) - frozenset(PLAIN)
#: One matrix at a time is dequantized to 16 bits for long inputs: bitsandbytes' dequantize_4bit, and GPTQ's and AWQ's
#: kernels beyond a few tokens.
UNPACKED: frozenset[str] = frozenset({"int4", "gptq", "gptq8", "awq"})
#: Memory of CUDA and its kernels themselves, as measured on an NVIDIA H200; less on cards with fewer multiprocessors.
CONTEXT_BYTES = 768 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """The intended use of a model.

    ``context`` is of language models; ``input`` the shape of one input of the others or of a pipeline's picture, such
    as 3 x 512 x 512, None by their configuration. Of a pipeline, ``offload`` keeps models in RAM until they are needed,
    ``tiling`` decodes pictures in tiles.
    """

    mode: Mode = "inference"
    precision: str = "bf16"
    batch: int = 1
    context: int = 4096
    optimizer: Optimizer = "adamw"
    checkpointing: bool = False
    rank: int = 16
    targets: str = "attention"
    input: tuple[int, ...] | None = None
    offload: bool = False
    tiling: bool = False


class NoEstimate(MessageError):
    """The model could not be asked; the message says why."""


class Estimate(NamedTuple):
    """Bytes by part (a template that names it) that a plan takes at least; ``spread_bytes`` more at most.

    A spread of 0 is an exact answer; None: nothing is known about the most. ``parameters`` is 0 where they are not
    counted, ``by`` the program that was asked, and ``unmeasured`` names what was never compared with a real card.
    """

    parts: dict[str, int]
    spread_bytes: int | None = 0
    parameters: int = 0
    by: MessageLike = ""
    unmeasured: tuple[MessageLike, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Return the peak on the card, at least."""
        return sum(self.parts.values())

    @property
    def max_bytes(self) -> int | None:
        """Return the peak on the card, at most."""
        return None if self.spread_bytes is None else self.total_bytes + self.spread_bytes
