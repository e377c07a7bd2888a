"""Weights take the bits that the authors of their formats state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advise.fit.shapes import shape
from wslgpud.advise.fit.estimate import weights
from wslgpud.advise.fit.source import source_of

#: a billion parameters, of which 2 x 1000 x 1000 are embeddings and the head
BILLION = replace(shape(2, 1000, 10, 10, 100, 4000, 1000), parameters=10**9)
MIXTURE = shape(3, 1000, 10, 10, 100, 400, 1000, num_experts=2, first_k_dense_replace=1)
EXPERTS = replace(MIXTURE, parameters=10**8)


@pytest.mark.parametrize(
    ("precision", "bits", "embedded_bits"),
    [
        ("bf16", 16, 16),
        ("fp16", 16, 16),
        ("fp32", 32, 32),
        ("mixed", 32, 32),
        # bitsandbytes: arXiv:2208.07339, with a scale for each row; QLoRA, arXiv:2305.14314
        ("int8", 8.08, 16),
        ("int4", 4.127, 16),
        ("fp8", 8, 16),
        # OCP Microscaling Formats 1.0, 5.1; blocks of 16 with a scale in 8 bits each
        ("mxfp4", 4.25, 16),
        ("nvfp4", 4.5, 16),
        # groups of 128 with a scale and a zero: arXiv:2210.17323
        ("gptq", 4.15625, 16),
        ("awq", 4.15625, 16),
        ("gptq8", 8.1875, 16),
        # https://github.com/ggml-org/llama.cpp/blob/master/tools/quantize/README.md: of the whole file
        ("q4_k_m", 4.8944, 4.8944),
        ("q5_k_m", 5.7036, 5.7036),
        ("q6_k", 6.5633, 6.5633),
        ("q8_0", 8.5008, 8.5008),
    ],
)
def test_embeddings_stay_in_16_bits_where_the_rest_is_quantized(
    precision: str, bits: float, embedded_bits: float
) -> None:
    assert BILLION.embeddings == 2 * 10**6
    for embedded in (2 * 10**6, 10**6):
        found = weights(replace(BILLION, embeddings=embedded), precision)
        assert 8 * found == pytest.approx((10**9 - embedded) * bits + embedded * embedded_bits, rel=1e-9)


def test_of_gpt_oss_only_the_experts_are_in_4_bits() -> None:
    experts = 2 * 3 * 1000 * 400 * 2

    assert weights(EXPERTS, "mxfp4") == experts * 4.25 / 8 + (10**8 - experts) * 2
    assert weights(replace(EXPERTS, parameters=1), "mxfp4") == experts * 4.25 / 8


def test_a_model_smaller_than_its_embeddings_takes_what_they_do() -> None:
    tiny = source_of("1K").shape

    assert tiny is not None
    assert weights(tiny, "int8") == 2 * 2 * 32_000 * 64
