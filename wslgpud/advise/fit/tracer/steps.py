"""Two training steps, or a prompt and some answers, as a program would run them; or a pipeline of diffusers.

A pipeline's models run in its order, two denoising steps and the decoding: the pipeline itself chooses its steps by
values, which are not there. A training is that of the denoiser, as in diffusers' examples: texts and pictures are
encoded without gradients in each step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from .build import Built, Job, Refused

#: answers after which the cache's gaps have stopped growing
_ANSWERS = 8
#: words of a prompt: CLIP's, and those of T5 in Flux's pipeline
_CLIP_WORDS, _T5_WORDS = 77, 512
_DENOISING_STEPS = 2


class Stage(NamedTuple):
    """The surroundings of a job. ``storages`` hear the purpose of further memory, and which tensors are on the card."""

    job: Job
    device: str
    storages: Any


def run(built: Built, stage: Stage) -> None:
    """Run the job on a model. Raises Refused."""
    if built.pipeline:
        built.pipeline.run(stage)
        return
    stage.storages.load(held(built.model), "weights")
    stage.storages.load(_tensors(built.batch), "activations")
    if stage.job["mode"] == "inference":
        with torch.no_grad():
            _answer(built, stage)
    else:
        train(built.model, lambda: _loss(_called(built.model, built.batch)), stage)


def held(model: Any) -> list[Any]:
    """Return a model's tensors."""
    return [*model.parameters(), *model.buffers()]


def train(model: Any, loss_of: Callable[[], Any], stage: Stage) -> None:
    """Run two training steps."""
    job, device, storages = stage
    model.train()
    optimizer = _optimizer(job["optimizer"], [p for p in model.parameters() if p.requires_grad])
    mixed = torch.autocast(device, torch.bfloat16, enabled=job["precision"] == "mixed")
    for _ in range(2):  # the optimizer's states are there from the second step on
        storages.purpose = "activations"
        with mixed:
            loss = loss_of()
        storages.purpose = "gradients"
        loss.backward()
        storages.purpose = "optimizer"
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss


def _optimizer(name: str, learning: list[Any]) -> Any:
    # torch chooses foreach only for plain tensors, which those without memory are not.
    if name in ("adamw", "adamw-fused"):
        return torch.optim.AdamW(learning, lr=1e-5, **{"fused" if name == "adamw-fused" else "foreach": True})
    if name == "adafactor":
        return torch.optim.Adafactor(learning, lr=1e-5)
    optimizer = torch.optim.SGD(learning, lr=1e-5, momentum=0.9 if name == "momentum" else 0.0, foreach=True)
    if name == "adamw8bit":
        optimizer.register_step_pre_hook(lambda *_: _take_moments_of_bytes(optimizer, learning))
    return optimizer


def _take_moments_of_bytes(optimizer: Any, learning: list[Any]) -> None:
    """8-bit AdamW: a byte per moment, and 4 for each block of 256 (arXiv:2110.02861); bitsandbytes needs a card."""
    for parameter in learning if not optimizer.state else ():
        count = parameter.numel()
        sizes = (count, count, 4 * -(-count // 256), 4 * -(-count // 256))
        moments = [torch.empty(size, dtype=torch.uint8, device=parameter.device) for size in sizes]
        optimizer.state[parameter]["moments"] = moments


def _called(model: Any, batch: Any) -> Any:
    return model(**batch) if isinstance(batch, dict) else model(*batch)


def _loss(out: Any) -> Any:
    """Return the loss of a model's output: its own, else cross entropy of logits, else a mean."""
    for name in ("loss", "logits"):
        value = getattr(out, name, None)
        out = value if isinstance(value, torch.Tensor) else out
    if isinstance(out, torch.Tensor) and out.dim() == 0:
        return out
    if isinstance(out, torch.Tensor) and out.dim() == 2:
        labels = torch.ones(out.shape[0], dtype=torch.int64, device=out.device)
        return torch.nn.functional.cross_entropy(out, labels)
    parts = [t.float().mean() for t in _tensors(out) if t.requires_grad and t.is_floating_point()]
    if not parts:
        raise Refused("the model returns nothing that can be trained")
    return sum(parts)


def _tensors(value: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _answer(built: Built, stage: Stage) -> None:
    """Answer a prompt, or call the model twice."""
    model, batch, job = built.model.eval(), built.batch, stage.job
    if not built.generates or not isinstance(batch, dict) or "decoder_input_ids" in batch:
        for _ in range(2):
            out = _called(model, batch)
            del out
        return
    answers = min(_ANSWERS, job["context"] - 1)
    accepted = inspect.signature(model.forward).parameters
    # transformers renames it now and then
    name = next((n for n in ("past_key_values", "cache_params") if n in accepted), "cache")
    few = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
    given = {**batch, "input_ids": batch["input_ids"][:, : job["context"] - answers]}
    cache = None
    for _ in range(answers):
        out = model(**given, **{name: cache}, **few, use_cache=True)
        cache = getattr(out, name, None)
        given = {"input_ids": torch.ones(job["batch"], 1, dtype=torch.int64, device=stage.device)}
        del out


class Pipeline:
    """The models of a pipeline, on the device."""

    def __init__(self, document: Job, job: Job, dtype: Any) -> None:
        models = {part: _made(config) for part, config in document.items()}
        self.denoiser = models.pop("transformer" if "transformer" in models else "unet")
        self.decoder = models.pop("vae")
        self.texts = [models[part].eval() for part in sorted(models)]
        kind = type(self.denoiser).__name__
        if kind not in ("UNet2DConditionModel", "FluxTransformer2DModel"):
            raise Refused(f"pipelines with {kind} are not known here")
        if job["precision"] == "fp8":
            self.denoiser.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=dtype)
        if job["tiling"]:
            self.decoder.enable_tiling()
        self.model = torch.nn.ModuleList([*self.texts, self.denoiser, self.decoder])
        self._flux, self._dtype = kind == "FluxTransformer2DModel", dtype

    def run(self, stage: Stage) -> None:
        """Draw pictures, or train the denoiser."""
        self._stage, job, learns = stage, stage.job, stage.job["mode"] != "inference"
        if learns or not job["offload"]:
            stage.storages.load(held(self.model), "weights")
        if job["mode"] == "lora":
            self._adapt()
            stage.storages.load(held(self.denoiser), "weights")
        if learns:
            if job["checkpointing"]:
                self.denoiser.enable_gradient_checkpointing()
            train(self.denoiser, self._loss, stage)
            return
        self.model.eval()
        with torch.no_grad():
            for text in self.texts:
                with self._on_card(text):
                    self._read(text)
            with self._on_card(self.denoiser):
                latents = self._latents()
                for _ in range(_DENOISING_STEPS):
                    noise = self._denoised(latents, guided=True)
                    latents = latents + noise[: latents.shape[0]]
            with self._on_card(self.decoder):
                self._decode(self._latents(spread=True))

    def packed(self) -> list[Any]:
        """Return the models whose matrices bitsandbytes packs."""
        return [self.denoiser, *filter(_is_t5, self.texts)]

    def _adapt(self) -> None:
        from peft import LoraConfig

        self.denoiser.requires_grad_(False)
        targets = ["to_k", "to_q", "to_v", "to_out.0"]
        self.denoiser.add_adapter(LoraConfig(r=self._stage.job["rank"], target_modules=targets))

    @contextmanager
    def _on_card(self, model: Any) -> Iterator[None]:
        """Load a model for its turn where it waits in RAM."""
        storages = self._stage.storages
        keys = storages.load(held(model) if self._stage.job["offload"] else [], "weights")
        storages.purpose = "activations"
        yield
        storages.unload(keys)

    def _read(self, text: Any) -> None:
        size = (self._stage.job["batch"], _T5_WORDS if _is_t5(text) else _CLIP_WORDS)
        text(torch.ones(*size, dtype=torch.int64, device=self._stage.device))

    def _random(self, *size: int) -> Any:
        return torch.randn(*size, device=self._stage.device, dtype=self._dtype)

    def _latents(self, *, spread: bool = False) -> Any:
        job, config = self._stage.job, self.decoder.config
        height, width = (side // 2 ** (len(config.block_out_channels) - 1) for side in job["input"][1:])
        if self._flux and not spread:
            return self._random(job["batch"], height * width // 4, self.denoiser.config.in_channels)
        return self._random(job["batch"], config.latent_channels, height, width)

    def _denoised(self, latents: Any, *, guided: bool = False) -> Any:
        config = self.denoiser.config
        if guided and not self._flux:
            latents = torch.cat([latents] * 2)  # with and without the prompt
        count = latents.shape[0]
        time, more = self._random(count), dict[str, Any]()
        if self._flux:
            more = {"pooled_projections": self._random(count, config.pooled_projection_dim)}
            words = self._random(count, _T5_WORDS, config.joint_attention_dim)
            more |= {"txt_ids": self._random(_T5_WORDS, 3), "img_ids": self._random(latents.shape[1], 3)}
            more |= {"guidance": time} if config.guidance_embeds else {}
        else:
            if config.addition_embed_type == "text_time":
                pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
                added = {"text_embeds": self._random(count, pooled), "time_ids": self._random(count, 6)}
                more["added_cond_kwargs"] = added
            words = self._random(count, _CLIP_WORDS, config.cross_attention_dim)
        return self.denoiser(latents, timestep=time, encoder_hidden_states=words, **more, return_dict=False)[0]

    def _decode(self, latents: Any) -> None:
        upcast = self.decoder.config.force_upcast and self._stage.job["precision"] == "fp16"
        if upcast and getattr(self.denoiser.config, "addition_embed_type", None) == "text_time":  # SDXL's overflows
            self.decoder.to(dtype=torch.float32)
            latents = latents.float()
        self.decoder.decode(latents, return_dict=False)

    def _loss(self) -> Any:
        job = self._stage.job
        with torch.no_grad():
            for text in self.texts:
                self._read(text)
            self.decoder.encode(self._random(job["batch"], *job["input"]))
        latents = self._latents()
        return torch.nn.functional.mse_loss(self._denoised(latents).float(), latents.float())


def _is_t5(text: Any) -> bool:
    return "T5" in type(text).__name__


def _made(config: Job) -> Any:
    import diffusers
    import transformers

    config = dict(config)
    name = str(config.pop("_class_name"))
    kind = getattr(diffusers, name, None) or getattr(transformers, name)
    return kind.from_config(config) if kind.__module__.startswith("diffusers") else kind(kind.config_class(**config))
