"""A diffusion pipeline takes the VRAM that diffusers was seen to take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from wslgpud.advise.fit import diffusion, picture
from wslgpud.advise.fit.diffusion import DiffusionPipeline, of, of_configs
from wslgpud.advise.fit.diffusion_configs import CONFIGS
from wslgpud.advise.fit.estimate import CONTEXT_BYTES, Estimate
from wslgpud.advise.fit.picture import PRECISIONS, PicturePlan, estimate, knobs
from wslgpud.advise.fit.quantization import ShapeError
from wslgpud.advise.fit.unet import Unet
from wslgpud.advise.fit.vae import Vae
from wslgpud.cli import app

GIB = 1 << 30
RECORDED = json.loads(Path(__file__).with_name("pictures.json").read_text())
PLANS = st.builds(
    PicturePlan,
    st.sampled_from(PRECISIONS),
    st.integers(1, 4),
    st.sampled_from([512, 768, 1024, 1344]),
    st.sampled_from([512, 1024]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


def known(name: str) -> DiffusionPipeline:
    found = of(name)
    assert found is not None
    return found


def in_use(found: Estimate) -> int:
    return sum(taken for part, taken in found.parts.items() if part not in ("PyTorch's cache, unused", "CUDA itself"))


@pytest.mark.parametrize(
    ("name", "denoiser", "others"),
    [
        # As diffusers and transformers count them (tests/gpu/pictures_on_a_real_card.py).
        ("sd15", 859_520_964, 123_060_480 + 83_653_863),
        ("sdxl", 2_567_463_684, 123_060_480 + 694_659_840 + 83_653_863),
        ("flux-dev", 11_901_408_320, 123_060_480 + 4_762_310_656 + 83_819_683),
        ("flux-schnell", 11_891_178_560, 123_060_480 + 4_762_310_656 + 83_819_683),
    ],
)
def test_parameters_are_those_of_the_models(name, denoiser, others):
    model = known(name)

    assert sum(p.numbers for p in diffusion.of_denoiser(model.denoiser)) == denoiser
    assert model.size == denoiser + others


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda c: f"{c['model']} {c['plan']}")
def test_a_real_card_took_what_is_said(case):
    """An NVIDIA H100 on 2026-11-24, by tests/gpu/pictures_on_a_real_card.py."""
    found = estimate(known(case["model"]), PicturePlan(**case["plan"]))

    assert found.total_bytes == pytest.approx(case["measured_bytes"], rel=0.05)
    # beside cuBLAS's workspaces
    assert in_use(found) + (64 << 20) == pytest.approx(case["allocated_bytes"], rel=0.025)
    assert known(case["model"]).size == case["parameters"]


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda c: f"{c['model']} {c['plan']}")
def test_it_was_said_before_the_card_was_asked(case):
    assert case["predicted_before_bytes"] == pytest.approx(case["measured_bytes"], rel=0.05)


@pytest.mark.parametrize(
    ("plan", "loaded_gib", "peak_gib"),
    [
        (PicturePlan("bf16"), 31.447, 36.166),
        (PicturePlan("bf16", offload=True), None, 23.271),
        (PicturePlan("int4"), 12.584, 17.281),
        (PicturePlan("int4", offload=True), None, 12.383),
        (PicturePlan("int8"), 19.273, 24.432),
        (PicturePlan("fp8"), 23.682, 28.451),
        (PicturePlan("fp8", offload=True), None, 15.621),
    ],
)
def test_flux_takes_what_diffusers_authors_published(plan, loaded_gib, peak_gib):
    """By PyTorch's allocator on an NVIDIA H100; the rows of diffusers and bitsandbytes.

    https://huggingface.co/datasets/derekl35/diffusers-quantization-benchmarks
    """
    found = estimate(known("flux-dev"), plan)

    assert (found.total_bytes - CONTEXT_BYTES) / GIB == pytest.approx(peak_gib, rel=0.05)
    if loaded_gib:
        weights = sum(found.parts[part] for part in ("text encoders", "denoiser", "autoencoder"))
        assert weights / GIB == pytest.approx(loaded_gib, rel=0.02)


def test_tiles_save_nothing_of_a_picture_that_is_one_tile():
    """SDXL's and Flux's autoencoders have tiles of 1024 pixels: ``sample_size`` in their configurations."""

    def total(name: str, side: int, *, tiling: bool) -> int:
        return estimate(known(name), PicturePlan(width=side, height=side, tiling=tiling)).total_bytes

    assert total("sdxl", 1024, tiling=True) == total("sdxl", 1024, tiling=False)
    assert total("sdxl", 1536, tiling=True) < total("sdxl", 1536, tiling=False) - GIB
    assert total("sd15", 1024, tiling=True) < total("sd15", 1024, tiling=False) - GIB


def test_sdxl_in_fp16_decodes_in_32_bits():
    """https://huggingface.co/docs/diffusers/api/pipelines/stable_diffusion/stable_diffusion_xl: ``force_upcast``."""
    half, brain = (estimate(known("sdxl"), PicturePlan(precision)).parts["decoding"] for precision in ("fp16", "bf16"))

    assert half == pytest.approx(2 * brain, rel=0.01)
    older = (estimate(known("sd15"), PicturePlan(precision)).parts["decoding"] for precision in ("fp16", "bf16"))
    assert len(set(older)) == 1


@pytest.mark.slow
@settings(max_examples=25)
@given(PLANS, st.sampled_from(list(CONFIGS)), st.integers(3, 40))
def test_every_knob_that_is_named_brings_it_in(plan, name, gib):
    for text, total in knobs(known(name), plan, gib * GIB):
        assert text
        assert total <= gib * GIB


@pytest.mark.parametrize(
    ("width", "height", "smaller"), [(1024, 1024, (512, 512)), (1536, 769, (768, 384)), (1536, 768, None)]
)
def test_smaller_pictures_are_advised_as_long_as_they_stay_pictures(width, height, smaller):
    turns = [turn for _, turn in picture._turns(PicturePlan(width=width, height=height))]

    assert [(turn["width"], turn["height"]) for turn in turns if "width" in turn] == [smaller] * (smaller is not None)


@settings(max_examples=25)
@given(PLANS, st.sampled_from(list(CONFIGS)))
def test_no_part_is_less_than_nothing(plan, name):
    assert all(part >= 0 for part in estimate(known(name), plan).parts.values())


def folder_of(place: Path, name: str, **changes: dict[str, object]) -> Path:
    """Write a folder as diffusers does."""
    index: dict[str, object] = {"_class_name": "APipeline", "scheduler": ["diffusers", "AScheduler"]}
    for part, config in CONFIGS[name].items():
        document = {**config, **changes.get(part, {})}
        index[part] = ["a_library", document.pop("_class_name")]
        (place / part).mkdir()
        (place / part / "config.json").write_text(json.dumps(document))
    (place / "model_index.json").write_text(json.dumps(index))
    return place


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_of_diffusers_tells_the_same_as_the_name(tmp_path, name):
    folder = folder_of(tmp_path, name)

    assert known(str(folder))._replace(name=name) == known(name)
    assert known(str(folder / "model_index.json")) == known(str(folder))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unet": {"_class_name": "SomethingElse"}}, "APipeline: fit supports diffusers' pipelines"),
        ({"unet": {"block_out_channels": None}}, "config.json has no block_out_channels"),
        ({"unet": {"layers_per_block": 10**9}}, "are implausible"),
        ({"unet": {"transformer_layers_per_block": [1, 2, 10**12]}}, "are implausible"),
        ({"unet": {"transformer_layers_per_block": "ten"}}, "config.json has no transformer_layers_per_block"),
        ({"vae": {"latent_channels": 10**30}}, "are implausible"),
        ({"text_encoder": {"num_hidden_layers": 10**9}}, "are implausible"),
    ],
)
def test_a_folder_made_to_harm_is_refused(tmp_path, changes, words):
    with pytest.raises(ShapeError, match=words):
        of(str(folder_of(tmp_path, "sdxl", **changes)))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(name, part, key) for name, parts in CONFIGS.items() for part in parts for key in parts[part]]),
    st.one_of(
        st.none(),
        st.booleans(),
        st.floats(),
        st.integers(-1, 1 << 40),
        st.text(max_size=2),
        st.lists(st.one_of(st.integers(-2, 10**12), st.text(max_size=2)), max_size=5),
        st.dictionaries(st.text(max_size=1), st.integers(), max_size=1),
    ),
)
def test_any_value_in_a_configuration_is_refused_or_computed(place, value):
    name, part, key = place
    if key == "_class_name":
        return
    models = {**CONFIGS[name], part: {**CONFIGS[name][part], key: value}}
    try:
        found = estimate(of_configs(models, name), PicturePlan(tiling=True))
    except ShapeError:
        return
    assert found.total_bytes > CONTEXT_BYTES


UNET = {
    "_class_name": "UNet2DConditionModel",
    "in_channels": 4,
    "block_out_channels": [32, 64],
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "cross_attention_dim": 48,
}
VAE = {"_class_name": "AutoencoderKL", "latent_channels": 4, "block_out_channels": [32, 64]}
FLUX = {"_class_name": "FluxTransformer2DModel"}
CLIP = {
    "_class_name": "CLIPTextModel",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "projection_dim": 96,
}
T5 = {"_class_name": "T5EncoderModel", "d_model": 64, "num_layers": 2, "d_ff": 128, "num_heads": 4, "d_kv": 24}


def test_a_size_that_a_configuration_leaves_out_is_diffusers_default():
    models = {"a": UNET, "b": VAE, "c": CLIP, "d": T5 | {"vocab_size": 1000}}
    found = of_configs(models, "made")

    assert found.denoiser == Unet(4, (32, 64), (1, 0), 1, 2, 48, linear=False, moment=0)
    assert found.decoder == Vae(4, (32, 64), 1, 32, quantized=True, upcast=True)
    clip, t5 = found.texts
    assert (clip.positions, clip.projected, clip.gated, clip.buckets, clip.heads_width) == (77, 0, False, 0, 64)
    assert (t5.positions, t5.projected, t5.gated, t5.buckets, t5.heads_width) == (0, 0, False, 32 * 4, 4 * 24)
    gated = T5 | {"vocab_size": 1000, "feed_forward_proj": "gated-gelu"}
    projected = CLIP | {"_class_name": "CLIPTextModelWithProjection"}
    found = of_configs({"a": FLUX, "b": VAE, "c": projected, "d": gated}, "made")
    assert found.denoiser == known("flux-schnell").denoiser
    assert (found.texts[0].projected, found.texts[1].gated) == (96, True)


@pytest.mark.parametrize(
    ("model", "key", "most"),
    [
        (FLUX, "num_layers", 64),
        (FLUX, "num_single_layers", 64),
        (FLUX, "in_channels", 1 << 20),
        (UNET, "layers_per_block", 64),
        (UNET, "transformer_layers_per_block", 64),
        (UNET, "cross_attention_dim", 1 << 20),
        (VAE, "sample_size", 1 << 20),
    ],
)
def test_a_size_is_plausible_up_to_a_limit(model, key, most):
    others = {FLUX["_class_name"]: FLUX, VAE["_class_name"]: VAE}
    if model is UNET:
        del others[FLUX["_class_name"]]

    of_configs(others | {model["_class_name"]: model | {key: most}}, "made")
    with pytest.raises(ShapeError, match="are implausible"):
        of_configs(others | {model["_class_name"]: model | {key: most + 1}}, "made")


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ([FLUX, VAE, VAE], "fit supports diffusers' pipelines"),
        ([FLUX, UNET, VAE], "fit supports diffusers' pipelines"),
        ([VAE], "fit supports diffusers' pipelines"),
        ([FLUX], "fit supports diffusers' pipelines"),
        ([FLUX, VAE | {"block_out_channels": []}], "has no block_out_channels"),
        ([FLUX, VAE | {"block_out_channels": [32, 0]}], "has no block_out_channels"),
        ([UNET | {"down_block_types": ["DownBlock2D"]}, VAE], "has no down_block_types"),
        ([UNET | {"transformer_layers_per_block": [1]}, VAE], "has no transformer_layers_per_block"),
        ([UNET | {"transformer_layers_per_block": [1, 0]}, VAE], "has no transformer_layers_per_block"),
        ([FLUX, VAE, CLIP | {"_class_name": "CLIPTextModelWithProjection", "projection_dim": 0}], "no projection_dim"),
    ],
)
def test_a_pipeline_has_one_denoiser_and_one_decoder_of_known_sizes(models, words):
    with pytest.raises(ShapeError, match=words):
        of_configs(dict(enumerate(models)), "made")


def test_an_entry_that_names_no_class_is_no_model(tmp_path):
    folder = folder_of(tmp_path, "sd15")
    index = json.loads((folder / "model_index.json").read_text())
    more = {"odd": ["diffusers", "AutoencoderKL", "more"], "one": ["AutoencoderKL"], "word": "AutoencoderKL"}
    (folder / "model_index.json").write_text(json.dumps(index | more))

    assert known(str(folder))._replace(name="sd15") == known("sd15")
    assert of(str(folder / "vae")) is None


def test_a_part_of_a_folder_cannot_lie_outside_of_it(tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/config.json").write_text(json.dumps(CONFIGS["sdxl"]["vae"]))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model_index.json").write_text(json.dumps({"../secret": ["diffusers", "AutoencoderKL"]}))

    with pytest.raises(ShapeError, match="fit supports diffusers' pipelines"):
        of(str(folder))


def asked(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["fit", *arguments])
    return done.exit_code, done.output


def test_the_command_says_whether_pictures_fit():
    fits, shown = asked("sdxl", "--usable", "16GiB")
    not_so, document = asked("flux-dev", "--usable", "16GiB", "--json")

    assert (fits, not_so) == (0, 1)
    assert "3.47 B parameters, bf16, batch 1, 1024x1024" in shown
    found = json.loads(document)
    assert found["fits"] is False
    assert sum(found["parts_bytes"].values()) == found["total_bytes"]
    assert found["knobs"][0]["total_bytes"] <= found["usable_bytes"]
    assert "--offload" in found["knobs"][0]["turn"]


@pytest.mark.parametrize(
    ("precision", "unmeasured"),
    [("bf16", []), ("fp8", []), ("int8", ["quantized weights"]), ("int4", ["quantized weights"])],
)
def test_the_answer_names_what_no_card_has_measured(precision, unmeasured):
    _, document = asked("sdxl", "--usable", "16GiB", "--precision", precision, "--json")

    assert json.loads(document)["unmeasured"] == unmeasured


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sdxl", "--mode", "lora"], "--mode is not for diffusion pipelines"),
        (["sdxl", "--context", "77"], "--context is not for diffusion pipelines"),
        (["sdxl", "--engine", "vllm"], "--engine is not for diffusion pipelines"),
        (["sdxl", "--precision", "gptq"], "there are bf16, fp16, fp32, fp8, int8, int4"),
        (["sdxl", "--resolution", "big"], "write it like 1024x1024"),
        (["sdxl", "--resolution", "99999x99999"], "up to 16384"),
        (["flux-dev", "--precision", "int8", "--offload"], "int8 weights stay on the card"),
        (["7B", "--resolution", "512x512"], "--resolution is for diffusion pipelines"),
        (["7B", "--vae-tiling"], "--vae-tiling is for diffusion pipelines"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(arguments, words):
    code, shown = asked(*arguments, "--usable", "24GiB")

    assert code == 2
    assert words in " ".join(shown.split())
