"""Builds the model that a job names, and a batch for it: with the user's torch, transformers, torchvision, timm."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

Job = dict[str, Any]

#: Where a configuration names no class: the first of these that knows its type.
_AUTO = (
    *("AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForImageTextToText"),
    *("AutoModelForSpeechSeq2Seq", "AutoModelForImageClassification", "AutoModelForSemanticSegmentation"),
    *("AutoModelForAudioClassification", "AutoModel"),
)
#: formats of weights, packed ones for 16 bits
_DTYPES = {"fp16": torch.float16, "fp32": torch.float32, "mixed": torch.float32}
#: ten seconds at 16 kHz
_SAMPLES = 160_000


class Refused(Exception):
    """A job that cannot be traced; the text says why."""


class Built(NamedTuple):
    """A model on the device and the arguments of a call of it."""

    model: Any
    batch: dict[str, Any] | list[Any] | tuple[Any, ...]
    #: a model of transformers that continues a text
    generates: bool = False
    pipeline: Any = None


def built(job: Job, device: str) -> Built:
    """Return the model of a job, with weights of its precision. Raises Refused."""
    source, _, name = job["model"].partition(":")
    usual, dtype = torch.get_default_dtype(), _DTYPES.get(job["precision"], torch.bfloat16)
    if source in ("config", "pipeline"):
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device):
                if source == "config":
                    return _of_transformers(job, json.loads(name))
                from .steps import Pipeline

                pipeline = Pipeline(json.loads(name), job, dtype)
                return Built(pipeline.model, (), pipeline=pipeline)
        finally:
            torch.set_default_dtype(usual)
    made = _named(source, name, job)
    model, batch = made if isinstance(made, tuple) else (made, None)
    if not isinstance(model, torch.nn.Module):
        raise Refused(f"{job['model']} returned a {type(model).__name__}, no torch.nn.Module")
    if batch is None:
        if not job["input"]:
            raise Refused("a model of one's own needs --input, or a function that returns model and batch")
        batch = torch.randn(job["batch"], *job["input"], device=device)

    def there(tensor: Any) -> Any:
        return tensor.to(device, dtype if tensor.is_floating_point() else None)

    batch = batch if isinstance(batch, (dict, list, tuple)) else (batch,)
    return Built(model.to(device=device, dtype=dtype), tree_map_only(torch.Tensor, there, batch))


def _named(source: str, name: str, job: Job) -> Any:
    if source == "torchvision":
        import torchvision

        builder = torchvision.models.get_model_builder(name)
        more = {"weights_backbone": None} if "weights_backbone" in inspect.signature(builder).parameters else {}
        return builder(weights=None, **more)
    if source == "timm":
        import timm

        return timm.create_model(name, pretrained=False)
    path = Path(source).resolve()
    sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    make = getattr(module, name, None)
    if not callable(make):
        raise Refused(f"{source} has no function {name}")
    return make(batch=job["batch"]) if "batch" in inspect.signature(make).parameters else make()


def _of_transformers(job: Job, document: Job) -> Built:
    import transformers

    document = {k: v for k, v in document.items() if k not in ("dtype", "torch_dtype", "quantization_config")}
    kind, known = document.pop("model_type", ""), transformers.CONFIG_MAPPING
    if kind not in known:
        raise Refused(f"transformers {transformers.__version__} does not know the model_type {kind or '(none)'}")
    config = known[kind](**document)
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(longest, int) and longest < job["context"]:
        raise Refused(f"the model has {longest} positions, fewer than a context of {job['context']}")
    model = _class_of(transformers, config, document)(config)
    if job["checkpointing"]:
        model.config.use_cache = False
        model.gradient_checkpointing_enable()
    if job["mode"] == "lora":
        if job["precision"] in ("int4", "int8"):
            _widen(model)
        model = _with_adapters(model, job)
    return Built(model, _batch(model, config, job), model.can_generate())


def _class_of(transformers: Any, config: Any, document: Job) -> Any:
    for name in document.get("architectures") or ():
        if isinstance(name, str) and hasattr(transformers, name):
            return getattr(transformers, name)._from_config
    for name in _AUTO:
        auto = getattr(transformers, name, None)
        suits = config.is_encoder_decoder or "Seq2Seq" not in name
        if suits and auto is not None and type(config) in auto._model_mapping:
            return auto.from_config
    raise Refused(f"transformers has no model of the type {config.model_type}")


def _widen(model: Any) -> None:
    """Leave only matrices in 16 bits, as ``prepare_model_for_kbit_training`` of peft does (peft#816).

    All between them then has 32 bits, and each packed matrix converts its input and its output.
    """
    head = model.get_output_embeddings()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module is not head:
            module.register_forward_pre_hook(lambda own, given: (given[0].to(own.weight.dtype), *given[1:]))
            module.register_forward_hook(lambda _, __, out: out.float())
            continue
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.float()


def _with_adapters(model: Any, job: Job) -> Any:
    from peft import LoraConfig, get_peft_model

    if job["checkpointing"]:
        model.enable_input_require_grads()
    usual, names = ["q_proj", "v_proj"], {name.rpartition(".")[2] for name, _ in model.named_modules()}
    targets = "all-linear" if job["targets"] == "all" else usual if names.issuperset(usual) else None
    return get_peft_model(model, LoraConfig(r=job["rank"], target_modules=targets))


def _batch(model: Any, config: Any, job: Job) -> dict[str, Any]:
    count, learns, name = job["batch"], job["mode"] != "inference", model.main_input_name
    inner, bands = getattr(config, "vision_config", config), getattr(config, "num_mel_bins", 80)
    side = getattr(inner, "image_size", None) or 224
    sides = side if isinstance(side, (list, tuple)) else (side, side)
    known = {
        "input_ids": (),
        "pixel_values": job["input"] or (getattr(inner, "num_channels", 3), *sides),
        "input_features": (bands, 3000),
        "input_values": (config.max_length, bands) if hasattr(config, "max_length") else (_SAMPLES,),
    }
    if (sizes := known.get(name)) is None:
        raise Refused(f"the model takes {name}, which is not known here")
    answers = {"input_ids": job["context"], "input_features": min(job["context"], 448)}.get(name)

    def words(*sizes: int) -> Any:
        return torch.ones(count, *sizes, dtype=torch.int64)

    labels = words(answers) if answers else words(*(sizes[1:] if "Segmentation" in type(model).__name__ else ()))
    batch = {name: torch.randn(count, *sizes) if sizes else labels}
    if answers and config.is_encoder_decoder:
        batch["decoder_input_ids"] = words(answers if learns else 1)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if learns and "labels" in inspect.signature(base.forward).parameters:
        batch["labels"] = labels
    own = next(model.parameters()).dtype
    return {k: v.to(own) if v.is_floating_point() else v for k, v in batch.items()}
