"""Trains the same small model with whole batches and with halved ones; ``python halves.py sums|means FOLDER``.

Prints one line of JSON: of each the calls of the model, the weights after three steps, the loss and the facts told.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments, trainer

sys.path.insert(0, str(Path(__file__).parents[2] / "wslgpud" / "training"))

import frameworks

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 64}
PLAIN = Trainer.training_step


class Data(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(8) * (index + 3) % 63 + 1
        return {"input_ids": ids, "labels": ids}


def norms(model: torch.nn.Module) -> list[float]:
    return [float(parameter.detach().double().norm()) for parameter in model.parameters()]


def trained(parts: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", num_key_value_heads=2, **SIZES))
    arguments = TrainingArguments(
        sys.argv[2], per_device_train_batch_size=4, max_steps=3, report_to=[], save_strategy="no", use_cpu=True, seed=0
    )
    arguments.learning_rate, arguments.optim, arguments.lr_scheduler_type = 0.1, "sgd", "constant"
    companion = SimpleNamespace(facts={}, on_warning=lambda hook: None)
    Trainer.training_step = PLAIN
    batches = frameworks.Batches(companion)
    batches.parts = parts
    batches.of(trainer)
    one = Trainer(model=model, args=arguments, train_dataset=Data())
    one.model_accepts_loss_kwargs = sys.argv[1] == "sums"
    calls, began = list[int](), norms(model)
    model.register_forward_hook(lambda *_: calls.append(1))
    done = one.train()
    return {
        "calls": len(calls),
        "began": began,
        "weights": norms(model),
        "loss": done.training_loss,
        "facts": companion.facts,
    }


sys.stdout.write(json.dumps([trained(1), trained(2)]) + "\n")
