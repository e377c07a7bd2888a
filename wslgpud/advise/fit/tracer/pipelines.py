"""Text-to-image pipelines of diffusers: their models run in the pipeline's order, two denoising steps and the decoding.

The pipeline itself chooses its steps by values, which are not there. A training is that of the denoiser, as in
diffusers' examples: texts and pictures are encoded without gradients in each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import steps
from .build import Job, Refused

#: words of a prompt: CLIP's, and those of T5 in Flux's pipeline
_CLIP_WORDS, _T5_WORDS = 77, 512
_STEPS = 2


class Pipeline:
    """The models of a pipeline, on the device."""

    def __init__(self, torch: Any, document: Job, job: Job, dtype: Any) -> None:
        self._torch, self._device, self._dtype = torch, "", dtype
        models = {part: _made(config) for part, config in document.items()}
        self.denoiser = models.pop("transformer" if "transformer" in models else "unet")
        self.decoder = models.pop("vae")
        self.texts = [models[part].eval() for part in sorted(models)]
        self.kind = type(self.denoiser).__name__
        if self.kind not in ("UNet2DConditionModel", "FluxTransformer2DModel"):
            raise Refused(f"pipelines with {self.kind} are not known here")
        if job["precision"] == "fp8":
            self.denoiser.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=dtype)
        if job["tiling"]:
            self.decoder.enable_tiling()
        if job["slicing"]:
            self.decoder.enable_slicing()
        self.model = torch.nn.ModuleList([*self.texts, self.denoiser, self.decoder])
        self._scale = 2 ** (len(self.decoder.config.block_out_channels) - 1)

    def run(self, stage: steps.Stage) -> None:
        """Draw pictures, or train the denoiser."""
        torch, job, self._device = stage.torch, stage.job, stage.device
        if job["mode"] != "inference":
            stage.phase("weights")
            stage.load(steps.held(self.model))
            learning = _adapted(self.denoiser, job) if job["mode"] == "lora" else self.denoiser
            stage.load(steps.held(learning))
            steps.train(learning, lambda: self._loss(job), stage)
            return
        self.model.eval()
        stage.phase("weights")
        if not job["offload"]:
            stage.load(steps.held(self.model))
        with torch.no_grad():
            for text in self.texts:
                with self._on_card(text, stage):
                    self._read(text, job)
            with self._on_card(self.denoiser, stage):
                latents = self._latents(job)
                for _ in range(_STEPS):
                    noise = self._denoised(latents, guided=True)
                    latents = latents + noise.chunk(2)[0] if noise.shape[0] > latents.shape[0] else latents + noise
            with self._on_card(self.decoder, stage):
                self._decoded(self._latents(job, spread=True), job)

    @contextmanager
    def _on_card(self, model: Any, stage: steps.Stage) -> Iterator[None]:
        """Load a model for its turn where it waits in RAM."""
        stage.phase("weights")
        keys = stage.load(steps.held(model)) if stage.job["offload"] else []
        stage.phase("activations")
        yield
        stage.unload(keys)

    def packed(self) -> list[Any]:
        """Return the models whose matrices bitsandbytes packs."""
        return [self.denoiser, *(text for text in self.texts if "T5" in type(text).__name__)]

    def _read(self, text: Any, job: Job) -> None:
        words = _T5_WORDS if "T5" in type(text).__name__ else _CLIP_WORDS
        text(self._torch.ones(job["batch"], words, dtype=self._torch.int64, device=self._device))

    def _random(self, *size: int, dtype: Any = None) -> Any:
        return self._torch.randn(*size, device=self._device, dtype=dtype or self._dtype)

    def _latents(self, job: Job, *, spread: bool = False) -> Any:
        height, width = job["height"] // self._scale, job["width"] // self._scale
        if self.kind == "FluxTransformer2DModel" and not spread:
            return self._random(job["batch"], height * width // 4, self.denoiser.config.in_channels)
        return self._random(job["batch"], self.decoder.config.latent_channels, height, width)

    def _denoised(self, latents: Any, *, guided: bool) -> Any:
        torch, config = self._torch, self.denoiser.config
        if self.kind == "FluxTransformer2DModel":
            count = latents.shape[0]
            time, pooled = self._random(count), self._random(count, config.pooled_projection_dim)
            words = self._random(count, _T5_WORDS, config.joint_attention_dim)
            ids = {"txt_ids": self._random(_T5_WORDS, 3), "img_ids": self._random(latents.shape[1], 3)}
            ids |= {"guidance": time} if config.guidance_embeds else {}
            return self.denoiser(latents, words, pooled, time, **ids, return_dict=False)[0]
        both = torch.cat([latents] * 2) if guided else latents  # with and without the prompt
        count = both.shape[0]
        more = {}
        if config.addition_embed_type == "text_time":
            pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
            more = {"text_embeds": self._random(count, pooled), "time_ids": self._random(count, 6)}
        words = self._random(count, _CLIP_WORDS, config.cross_attention_dim)
        time = self._random(count)
        return self.denoiser(both, time, encoder_hidden_states=words, added_cond_kwargs=more, return_dict=False)[0]

    def _decoded(self, latents: Any, job: Job) -> Any:
        upcast = self.decoder.config.force_upcast and job["precision"] == "fp16"
        if upcast and getattr(self.denoiser.config, "addition_embed_type", None) == "text_time":  # SDXL's overflows
            self.decoder.to(dtype=self._torch.float32)
            latents = latents.to(self._torch.float32)
        return self.decoder.decode(latents, return_dict=False)[0]

    def _loss(self, job: Job) -> Any:
        torch = self._torch
        with torch.no_grad():
            for text in self.texts:
                self._read(text, job)
            own = next(self.decoder.parameters()).dtype
            self.decoder.encode(self._random(job["batch"], 3, job["height"], job["width"], dtype=own))
        latents = self._latents(job)
        noise = self._denoised(latents, guided=False)
        return torch.nn.functional.mse_loss(noise.float(), latents.float())


def _made(config: Job) -> Any:
    import diffusers
    import transformers

    config = dict(config)
    kind = str(config.pop("_class_name"))
    if isinstance(getattr(diffusers, kind, None), type):
        return getattr(diffusers, kind).from_config(config)
    known = {"CLIP": transformers.CLIPTextConfig, "T5": transformers.T5Config}
    made = next((known[start] for start in known if kind.startswith(start)), None)
    if made is None:
        raise Refused(f"a {kind} is not known here")
    return getattr(transformers, kind)(made(**config))


def _adapted(denoiser: Any, job: Job) -> Any:
    from peft import LoraConfig

    denoiser.requires_grad_(False)
    denoiser.add_adapter(LoraConfig(r=job["rank"], target_modules=["to_k", "to_q", "to_v", "to_out.0"]))
    if job["checkpointing"]:
        denoiser.enable_gradient_checkpointing()
    return denoiser
