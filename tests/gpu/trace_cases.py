"""The models that ``traces_on_a_real_card`` traces and runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wslgpud.advise.fit.source import source_of

_PLAIN = {
    "mode": "training",
    "precision": "bf16",
    "batch": 1,
    "context": 1024,
    "optimizer": "adamw",
    "input": None,
    "checkpointing": False,
    "rank": 16,
    "targets": "attention",
}


def _config(kind: str, **keys: Any) -> str:
    return "config:" + json.dumps({"model_type": kind, **keys})


def _decoder(kind: str, *sizes: int, **keys: Any) -> str:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    return _config(kind, **dict(zip((*names, "vocab_size"), sizes, strict=True)), **keys)


_LLAMA = _decoder(
    "llama", 2048, 16, 32, 8, 8192, 128256, head_dim=64, tie_word_embeddings=True, max_position_embeddings=8192
)
_QWEN3 = _decoder("qwen3", 2560, 36, 32, 8, 9728, 151936, head_dim=128, tie_word_embeddings=True)
_SMOL = _decoder("smollm3", 2048, 36, 16, 4, 11008, 128256, tie_word_embeddings=True)
_BERT = _config("bert")
_ROBERTA = _config(
    "roberta",
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    vocab_size=50265,
    max_position_embeddings=1026,
)
_T5 = _config("t5", d_model=1024, d_ff=4096, num_layers=24, num_heads=16, vocab_size=32128)
_BART = _config("bart", max_position_embeddings=1024)
_MAMBA = _config(
    "mamba2",
    hidden_size=1536,
    num_hidden_layers=24,
    num_heads=48,
    head_dim=64,
    n_groups=1,
    vocab_size=50288,
    state_size=128,
    expand=2,
)
_GPTOSS = _decoder("gpt_oss", 2880, 6, 64, 8, 2880, 201088, num_local_experts=32, num_experts_per_tok=4, head_dim=64)
_ERNIE = _decoder("ernie4_5", 1024, 18, 16, 2, 3072, 103424, head_dim=128, tie_word_embeddings=True)
_MODERNBERT = _config("modernbert")
_DEBERTA = _config(
    "deberta-v2",
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    intermediate_size=3072,
    vocab_size=128100,
    relative_attention=True,
    pos_att_type=["p2c", "c2p"],
    position_buckets=256,
    share_att_key=True,
    norm_rel_ebd="layer_norm",
    max_position_embeddings=512,
)
_WHISPER = _config(
    "whisper",
    d_model=1024,
    encoder_layers=24,
    decoder_layers=24,
    encoder_attention_heads=16,
    decoder_attention_heads=16,
    encoder_ffn_dim=4096,
    decoder_ffn_dim=4096,
)
_WAV2VEC = _config("wav2vec2", architectures=["Wav2Vec2ForSequenceClassification"])
_SIZES = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "intermediate_size": 8192}
_MIXTRAL = _decoder("mixtral", 4096, 2, 32, 8, 14336, 32000)
_GEMMA = _decoder("gemma3_text", 1152, 26, 4, 1, 6912, 262144, head_dim=256)
_FALCON = _config("falcon_mamba", hidden_size=2048, num_hidden_layers=8, vocab_size=65024)


def _case(model: str, **plan: Any) -> dict[str, Any]:
    return {**_PLAIN, "model": model, **plan}


def _picture(model: str, batch: int, side: int = 224, **plan: Any) -> dict[str, Any]:
    return _case(model, batch=batch, input=[3, side, side], **{"precision": "fp32", **plan})


def _pipeline(name: str, side: int = 512, **plan: Any) -> dict[str, Any]:
    usual = {"mode": "inference", "input": [3, side, side], "offload": False, "tiling": False}
    return _case(source_of(name).asked, name=name, **{**usual, **plan})


_OWN = f"{Path(__file__).with_name('others.py')}:"
#: the first list, after which convolutions were measured: a calibration by now
FIRST: tuple[dict[str, Any], ...] = (
    _case(_LLAMA, batch=4, context=2048),
    _case(_LLAMA, mode="inference", batch=4, context=4096),
    _case(_LLAMA, batch=2, context=1024, precision="mixed"),
    _case(_LLAMA, mode="lora", batch=4, context=2048),
    _case(_QWEN3, mode="lora", batch=2, context=2048),
    _case(_QWEN3, mode="inference", batch=2, context=8192),
    _case(_SMOL, batch=4, context=4096, checkpointing=True),
    _case(_SMOL, mode="inference", batch=4, context=8192),
    _case(_BERT, batch=32, context=512, precision="mixed"),
    _case(_BERT, mode="inference", batch=64, context=512),
    _case(_ROBERTA, batch=8, context=512),
    _case(_T5, batch=4, context=512),
    _case(_BART, batch=8, context=512),
    _case(_MAMBA, batch=2, context=1024),
    _case(_GPTOSS, mode="inference", context=4096),
    _case(_ERNIE, batch=4, context=2048),
    _case(_MODERNBERT, batch=16, context=1024),
    _case(_DEBERTA, batch=8, context=512),
    _case(_WHISPER, batch=8, context=128),
    _case(_WAV2VEC, batch=8),
    _case(_MIXTRAL, batch=1, context=2048),
    _case(_GEMMA, batch=2, context=2048),
    _case(_FALCON, batch=1, context=512),
    _picture(_config("vit"), 64),
    _picture("torchvision:resnet50", 64),
    _picture("torchvision:resnet50", 64, precision="mixed"),
    _picture("torchvision:resnet50", 128, mode="inference"),
    _picture("torchvision:vit_b_16", 64),
    _picture("torchvision:efficientnet_v2_s", 32),
    _picture("torchvision:convnext_tiny", 64),
    _picture("torchvision:swin_t", 64),
    _picture("torchvision:mobilenet_v3_large", 128),
    _picture("torchvision:densenet121", 32),
    _picture("torchvision:vgg16", 32),
    _picture("torchvision:deeplabv3_resnet50", 8, 512),
    _picture("timm:vit_base_patch16_224", 64, precision="mixed"),
    _picture("timm:convnextv2_tiny", 32),
    _picture("timm:resnet18", 256, optimizer="momentum"),
    _picture(_config("segformer", num_labels=150), 8, 512),
    _case(_OWN + "nanogpt", batch=8, precision="mixed"),
    _case(_OWN + "unet", batch=4, precision="fp32"),
    _case(_OWN + "lstm", batch=64, precision="fp32"),
    _case(_OWN + "dcgan", batch=512, precision="fp32"),
    _case(_OWN + "sharper", batch=32, precision="fp32"),
    _pipeline("sd15"),
    _pipeline("sdxl", 1024),
    _pipeline("sdxl", 1024, precision="fp16", offload=True),
    _pipeline("sd15", batch=8, precision="fp16"),
    _pipeline("flux-dev", 1024, precision="fp8"),
    _pipeline("sdxl", 1536, tiling=True),
)
#: chosen after convolutions were measured, before any of them was traced on a card or run
SECOND: tuple[dict[str, Any], ...] = (
    _case(_decoder("gemma", 2048, 12, 8, 1, 16384, 256000, head_dim=256), batch=2, context=1024),
    _case(_decoder("phi3", 3072, 16, 32, 32, 8192, 32064, pad_token_id=0), mode="inference", batch=4, context=4000),
    _case(_decoder("olmo2", 2048, 16, 16, 16, 8192, 100352), batch=2, context=2048, checkpointing=True),
    _case(_decoder("stablelm", 2048, 24, 32, 32, 5632, 100352), batch=2, context=1024, precision="mixed"),
    _case(_config("gpt2", n_embd=1280, n_layer=36, n_head=20), batch=4, context=1024, precision="mixed"),
    _case(_config("opt", hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, ffn_dim=8192), batch=2),
    _case(_config("bloom", hidden_size=2048, n_layer=24, n_head=16), mode="inference", batch=2, context=2048),
    _case(_config("gpt_neox", hidden_size=2048, num_hidden_layers=16, num_attention_heads=8, intermediate_size=8192)),
    _case(_decoder("cohere2", 4096, 6, 32, 8, 14336, 256000), mode="inference", batch=2, context=4096),
    _case(_decoder("granite", 2048, 40, 32, 8, 8192, 49152), mode="lora", batch=2, context=2048),
    _case(_decoder("qwen2_moe", 2048, 6, 16, 16, 5632, 151936, num_experts=60, moe_intermediate_size=1408), batch=1),
    _case(_decoder("glm4", 4096, 10, 32, 2, 13696, 151552, head_dim=128), mode="inference", batch=2, context=8000),
    _case(_decoder("exaone4", 2048, 16, 32, 8, 4096, 102400, head_dim=64), batch=2, context=1024),
    _case(_decoder("lfm2", 1024, 16, 16, 8, 6656, 65536), batch=4, context=1024),
    _case(_decoder("starcoder2", 3072, 12, 24, 2, 12288, 49152), batch=2, context=1024, optimizer="adafactor"),
    _case(_decoder("mistral", 4096, 8, 32, 8, 14336, 32000), batch=2, context=2048, optimizer="sgd"),
    _case(
        _config("albert", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
        batch=8,
        context=512,
    ),
    _case(
        _config("electra", embedding_size=768, hidden_size=768, intermediate_size=3072, num_attention_heads=12),
        batch=16,
        context=512,
    ),
    _case(_config("distilbert"), batch=32, context=512, precision="mixed"),
    _case(_config("xlm-roberta", max_position_embeddings=514, vocab_size=250002), batch=8, context=510),
    _case(_config("mpnet", max_position_embeddings=514), batch=16, context=510, precision="fp32"),
    _case(
        _config(
            "pegasus", d_model=1024, encoder_layers=8, decoder_layers=8, max_position_embeddings=1024, vocab_size=96103
        ),
        batch=4,
        context=512,
    ),
    _case(_config("mbart", d_model=1024, vocab_size=250027), batch=4, context=512, mode="inference"),
    _picture(_config("beit", num_labels=1000), 32),
    _picture(_config("dinov2", hidden_size=768, image_size=224, architectures=["Dinov2ForImageClassification"]), 32),
    _picture(_config("swinv2", image_size=256, num_labels=1000), 32, 256),
    _picture(_config("mobilevit", num_labels=1000), 64, 256),
    _picture(_config("convnext", num_labels=1000), 48, precision="mixed"),
    _case(_config("audio-spectrogram-transformer"), batch=8, precision="fp32"),
    _picture("torchvision:resnext50_32x4d", 64),
    _picture("torchvision:wide_resnet50_2", 48, precision="mixed"),
    _picture("torchvision:regnet_y_8gf", 32),
    _picture("torchvision:maxvit_t", 24),
    _picture("torchvision:efficientnet_b3", 32, 300, precision="mixed"),
    _picture("torchvision:shufflenet_v2_x2_0", 256),
    _picture("torchvision:fcn_resnet50", 8, 480),
    _case("torchvision:r3d_18", batch=16, precision="fp32", input=[3, 16, 112, 112]),
    _picture("timm:mixer_b16_224", 64),
    _picture("timm:ghostnet_100", 128, mode="inference"),
    _picture("timm:resnetv2_50", 64, precision="bf16"),
    _case(_OWN + "ddpm", batch=128, precision="fp32"),
    _case(_OWN + "translator", batch=64, precision="mixed"),
    _case(_OWN + "pointnet", batch=64, precision="fp32"),
    _case(_OWN + "reviews", batch=64, precision="fp32"),
    _case(_OWN + "edsr", batch=16, precision="fp32"),
    _pipeline("sd15", 768, batch=2),
    _pipeline("sdxl", 1024, batch=2, offload=True),
    _pipeline("flux-schnell", 1024),
)
#: chosen after two faults that the second list had shown were mended, likewise
THIRD: tuple[dict[str, Any], ...] = (
    _case(_decoder("olmo", 2048, 16, 16, 16, 8192, 50304), batch=2, context=2048),
    _case(_decoder("seed_oss", 5120, 6, 80, 8, 27648, 155136, head_dim=128), mode="inference", batch=1, context=8192),
    _case(
        _decoder("hunyuan_v1_dense", 2048, 24, 16, 4, 6144, 120818, head_dim=128), mode="lora", batch=2, context=1024
    ),
    _case(_decoder("gemma2", 2304, 12, 8, 4, 9216, 256000, head_dim=256), batch=1, context=2048),
    _case(_config("mt5", d_model=512, d_ff=1024, num_layers=8, num_heads=6, vocab_size=250112), batch=4, context=512),
    _case(_config("roberta-prelayernorm", max_position_embeddings=514), batch=16, context=510, precision="mixed"),
    _case(
        _config("codegen", n_embd=2560, n_layer=12, n_head=32, rotary_dim=64), mode="inference", batch=2, context=2000
    ),
    _case(
        _config("gpt_bigcode", n_embd=2048, n_layer=16, n_head=16, n_positions=2048),
        batch=2,
        context=2048,
        precision="mixed",
    ),
    _picture("torchvision:swin_v2_t", 32, 256),
    _picture("torchvision:mnasnet1_3", 128),
    _picture("torchvision:vit_l_16", 32, precision="mixed"),
    _case("torchvision:mc3_18", batch=8, precision="fp32", input=[3, 16, 112, 112]),
    _picture("timm:pvt_v2_b1", 64),
    _picture("timm:tf_efficientnetv2_b0", 96, mode="inference"),
    _picture(_config("regnet", num_labels=1000), 64),
    _picture(_config("poolformer", num_labels=1000), 48),
)
#: chosen before any of them was traced on a card or run; of the tracer, only what HuBERT died of changed afterwards
FOURTH: tuple[dict[str, Any], ...] = (
    _case(_config("nemotron", **_SIZES, num_key_value_heads=8), batch=2, context=2048),
    _case(_decoder("arcee", 2048, 16, 16, 4, 8192, 128004), batch=2, context=1024, optimizer="adamw-fused"),
    _case(_decoder("helium", 2560, 24, 20, 20, 7040, 48000, head_dim=128), mode="inference", batch=4, context=4000),
    _case(_decoder("glm", 4096, 12, 32, 2, 13696, 151552, head_dim=128, pad_token_id=0), mode="lora", batch=2),
    _case(_decoder("qwen2", 1536, 28, 12, 2, 8960, 151936, tie_word_embeddings=True), batch=2, checkpointing=True),
    _case(_decoder("apertus", 4096, 10, 32, 8, 21504, 131072), mode="inference", batch=2, context=4096),
    _case(_decoder("olmo3", 2048, 16, 16, 16, 8192, 100278), batch=2, context=2048),
    _case(_config("gptj", n_embd=4096, n_layer=12, n_head=16), mode="inference", batch=2, context=2000),
    _case(
        _config("gpt_neo", hidden_size=2048, num_heads=16, num_layers=16, attention_types=[[["global", "local"], 8]]),
        precision="mixed",
    ),
    _case(_decoder("granitemoe", 1536, 16, 24, 8, 512, 49152, num_local_experts=40, num_experts_per_tok=8), batch=2),
    _case(_decoder("qwen3_moe", 2048, 6, 32, 4, 6144, 151936, num_experts=64, moe_intermediate_size=768), batch=2),
    _case(_decoder("ministral", 4096, 6, 32, 8, 12288, 131072, head_dim=128), batch=1, context=2048, optimizer="sgd"),
    _case(_config("camembert", max_position_embeddings=514), batch=32, context=256, precision="mixed"),
    _case(_config("megatron-bert", max_position_embeddings=512), batch=8, context=512),
    _case(_config("convbert"), batch=16, context=256, precision="fp32"),
    _case(_config("rembert", num_hidden_layers=12), batch=4, context=512),
    _case(_config("squeezebert"), batch=32, context=256, precision="fp32"),
    _case(_config("deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]), batch=8, context=512),
    _case(_config("marian", d_model=512, encoder_layers=6, decoder_layers=6, vocab_size=58101), batch=32, context=128),
    _case(_config("m2m_100", d_model=1024, vocab_size=128112), batch=4, context=256, precision="mixed"),
    _case(
        _config("umt5", d_model=768, d_ff=2048, num_layers=12, num_heads=12, vocab_size=256384), batch=4, context=512
    ),
    _case(_config("hubert", architectures=["HubertForSequenceClassification"]), batch=8, precision="fp32"),
    _case(_config("wavlm", architectures=["WavLMForSequenceClassification"]), batch=4, precision="fp32"),
    _case(_config("data2vec-audio", architectures=["Data2VecAudioForSequenceClassification"]), batch=8),
    _picture(_config("deit", num_labels=1000, architectures=["DeiTForImageClassification"]), 64, precision="mixed"),
    _picture(_config("hiera", num_labels=1000), 32),
    _picture(_config("focalnet", num_labels=1000), 48),
    _picture(_config("resnet", num_labels=1000), 64, precision="bf16"),
    _picture("torchvision:resnet101", 64, precision="mixed"),
    _picture("torchvision:inception_v3", 64, 299),
    _picture("torchvision:squeezenet1_1", 256),
    _picture("torchvision:convnext_small", 32),
    _picture("torchvision:lraspp_mobilenet_v3_large", 16, 512),
    _case("torchvision:r2plus1d_18", batch=8, precision="fp32", input=[3, 16, 112, 112]),
    _picture("timm:coatnet_0_rw_224", 32),
    _picture("timm:edgenext_small", 64),
    _picture("timm:deit3_base_patch16_224", 64, precision="bf16"),
    _picture("timm:regnety_032", 128, mode="inference"),
    _case(_OWN + "vae", batch=256, precision="fp32"),
    _case(_OWN + "temporal", batch=64, precision="mixed"),
    _case(_OWN + "nerf", batch=256, precision="fp32"),
    _case(_OWN + "clicks", batch=8192, precision="fp32"),
    _case(_OWN + "contrast", batch=128, precision="mixed"),
    _pipeline("sd15", 640, batch=4),
    _pipeline("sdxl", 1024, mode="lora", batch=1),
    _pipeline("sd15", mode="training", precision="mixed", batch=4),
)
