"""Trainings run under ``wslgpud inside``: the memory that they retain with each step."""

from __future__ import annotations

from functools import partial

from grafana.source.kit import Panel, ask, dashed, lines, metric

#: four of them beside one another
_small = partial(lines, width=6)
_RUN = "{{program}} ({{pid}})"
_WHO = f"{_RUN} {{{{resource}}}}"
_OF_MEMORY = {
    "peak": "training_peak_bytes",
    "reserved": "training_reserved_bytes",
    "fragmented": "training_fragmented_bytes",
}


def training() -> list[Panel]:
    """Return the row of panels."""
    retries, failures = (metric(f"training_allocation_{name}") for name in ("retries", "failures"))
    return [
        dashed(
            lines(
                "Memory after each step",
                "Memory that trainings retain from step to step, their peak, and memory reserved by PyTorch's "
                "allocator, some of it fragmented. Retained memory should stay level: if it keeps growing, it is a "
                "leak.",
                ask(metric("training_kept_bytes"), f"retained: {_WHO}"),
                *(ask(metric(name), f"{said}: {_WHO}") for said, name in _OF_MEMORY.items()),
                unit="bytes",
                width=12,
            ),
            "peak: .*",
        ),
        _small(
            "Growth per step",
            "Growth of retained memory with each step, and in total since its start. Empty while nothing grows.",
            ask(metric("training_growth_per_step_bytes"), f"per step: {_WHO}"),
            ask(metric("training_growth_bytes"), f"so far: {_WHO}"),
            unit="bytes",
        ),
        _small(
            "Time until the training is full",
            "At the current growth of retained memory, and the pace of the last minute. Empty while nothing grows.",
            ask(metric("training_time_to_full_seconds"), _WHO),
            unit="s",
        ),
        _small(
            "Step time",
            "Seconds for each step. A training that has spilled into Windows RAM takes many times as long.",
            ask(metric("training_step_seconds"), _RUN),
            ask(metric("training_usual_step_seconds"), f"fastest minute: {_RUN}"),
            unit="s",
        ),
        _small(
            "Steps per second",
            "Steps of the optimizer.",
            ask(f"rate({metric('training_steps')}[$__rate_interval])", _RUN),
            unit="short",
        ),
        _small(
            "Steps until the training is full",
            "The same, in steps of the optimizer.",
            ask(metric("training_steps_to_full"), _WHO),
            unit="short",
        ),
        _small(
            "Allocator out of room",
            "How often PyTorch's allocator found the card full: it freed its cache and continued, or failed.",
            ask(f"increase({retries}[$__rate_interval])", f"continued: {_WHO}"),
            ask(f"increase({failures}[$__rate_interval])", f"failed: {_WHO}"),
            unit="short",
            decimals=0,
        ),
        _small(
            "Largest batch that fits",
            "Samples, given the peak per sample. Reported only by Hugging Face's Trainer.",
            ask(metric("training_largest_batch"), _WHO),
            unit="short",
            decimals=0,
        ),
        _small(
            "Missing for the longest sequences",
            "Memory missing for a batch of the longest allowed sequences, extrapolated from the longest so far.",
            ask(metric("training_longest_lacks_bytes"), _WHO),
            unit="bytes",
        ),
        _small(
            "Tokens per second",
            "Including padding. Reported only by Hugging Face's Trainer.",
            ask(f"rate({metric('training_tokens')}[$__rate_interval])", _RUN),
            unit="short",
        ),
        _small(
            "Pinned host memory",
            "RAM that PyTorch has pinned for copies to the card. WSL2 allows about half of the RAM.",
            ask(metric("training_pinned_bytes"), _RUN),
            unit="bytes",
        ),
        _small(
            "Model servers: cache and requests",
            "Use of vLLM's or llama.cpp's KV cache, and requests running, waiting and preempted.",
            ask(metric("model_server_cache_used_ratio"), "cache: {{server}}"),
            ask(metric("model_server_requests_running"), "running: {{server}}"),
            ask(metric("model_server_requests_waiting"), "waiting: {{server}}"),
            ask(f"rate({metric('model_server_preemptions')}[$__rate_interval])", "preempted per second: {{server}}"),
            ask(f"1 - {metric('model_server_up')}", "down: {{server}}"),
            unit="short",
        ),
        _small(
            "Model servers: loaded models",
            "Each model's memory in Ollama: on the card, and in RAM if it does not fit.",
            ask(metric("model_server_vram_bytes"), "VRAM: {{model}}"),
            ask(metric("model_server_ram_bytes"), "RAM: {{model}}"),
            unit="bytes",
        ),
    ]
