"""The configurations of pipelines known by name, as far as they affect memory.

From the config.json files of stable-diffusion-v1-5/stable-diffusion-v1-5, stabilityai/stable-diffusion-xl-base-1.0,
black-forest-labs/FLUX.1-dev and black-forest-labs/FLUX.1-schnell on Hugging Face.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CLIP_L = {
    "_class_name": "CLIPTextModel",
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "vocab_size": 49408,
    "projection_dim": 768,
}
_CLIP_G = {
    "_class_name": "CLIPTextModelWithProjection",
    "hidden_size": 1280,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "intermediate_size": 5120,
    "vocab_size": 49408,
    "projection_dim": 1280,
}
_T5_XXL = {
    "_class_name": "T5EncoderModel",
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "vocab_size": 32128,
    "feed_forward_proj": "gated-gelu",
}
_VAE = {
    "_class_name": "AutoencoderKL",
    "latent_channels": 4,
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 2,
    "sample_size": 512,
}
_FLUX_VAE = {
    **_VAE,
    "latent_channels": 16,
    "sample_size": 1024,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
}
_FLUX = {
    "_class_name": "FluxTransformer2DModel",
    "in_channels": 64,
    "num_layers": 19,
    "num_single_layers": 38,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "guidance_embeds": True,
}
_SD_15 = {
    "_class_name": "UNet2DConditionModel",
    "in_channels": 4,
    "block_out_channels": [320, 640, 1280, 1280],
    "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
    "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3,
    "layers_per_block": 2,
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
}
_SDXL = {
    "_class_name": "UNet2DConditionModel",
    "in_channels": 4,
    "block_out_channels": [320, 640, 1280],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "layers_per_block": 2,
    "transformer_layers_per_block": [1, 2, 10],
    "cross_attention_dim": 2048,
    "attention_head_dim": [5, 10, 20],
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
_FLUX_DEV = {"text_encoder": _CLIP_L, "text_encoder_2": _T5_XXL, "transformer": _FLUX, "vae": _FLUX_VAE}
#: by the name of the pipeline: each model by its name in model_index.json
CONFIGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "sd15": {"vae": _VAE, "text_encoder": _CLIP_L, "unet": _SD_15},
    "sdxl": {"vae": _VAE | {"sample_size": 1024}, "text_encoder": _CLIP_L, "text_encoder_2": _CLIP_G, "unet": _SDXL},
    "flux-dev": _FLUX_DEV,
    "flux-schnell": _FLUX_DEV | {"transformer": _FLUX | {"guidance_embeds": False}},
}
