"""Model servers by their own metrics pages: how vLLM, llama.cpp and Ollama use their share of the GPU.

vLLM allocates its share of the GPU at the start, so that use within it shows only here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from wslgpud.host import NoData
from wslgpud.metrics import MetricSpec, NameLimit, counter, gauge
from wslgpud.model import Number, Reading, Sample
from wslgpud.security import http_client, redaction, safe_files
from wslgpud.sources import Source, page_samples
from wslgpud.words import say

log = logging.getLogger(__name__)

EVERY_SECONDS, ANSWER_SECONDS = 5.0, 1.0
MAX_BYTES, MAX_SERVERS, MAX_MODELS = 4 << 20, 8, 32
#: length of a model's name in characters; each name becomes two series that are kept for years
_MAX_NAME = 200
#: more than any machine has
_MAX_MEMORY_BYTES = 1 << 50
_MODELS = NameLimit("model", "model", MAX_MODELS)

UP = gauge("model_server_up", "1 if the page of a model server could be read.", "server")
RUNNING = gauge("model_server_requests_running", "Requests that a model server is processing.", "server")
WAITING = gauge("model_server_requests_waiting", "Requests that wait for room or for a slot.", "server")
CACHE = gauge("model_server_cache_used_ratio", "Share of the KV cache in use.", "server")
PREEMPTIONS = counter(
    "model_server_preemptions", "Requests preempted because the cache was full, to be recomputed.", "server"
)
VRAM = gauge("model_server_vram_bytes", "VRAM that a loaded model takes.", "server", "model", names=(_MODELS,))
RAM = gauge(
    "model_server_ram_bytes",
    "RAM that a loaded model takes, where it does not fit on the card.",
    *("server", "model"),
    names=(_MODELS,),
)
#: Names of several versions, the newest first: https://docs.vllm.ai/en/stable/usage/metrics/,
#: https://github.com/ggml-org/llama.cpp/tree/master/tools/server (``--metrics``)
_NAMES: Mapping[MetricSpec, tuple[str, ...]] = {
    RUNNING: ("vllm:num_requests_running", "llamacpp:requests_processing"),
    WAITING: ("vllm:num_requests_waiting", "llamacpp:requests_deferred"),
    CACHE: ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "llamacpp:kv_cache_usage_ratio"),
    PREEMPTIONS: ("vllm:num_preemptions_total",),
}


class ModelServerSource(Source):
    """Reads the pages in ``sampling.model_servers``; one that does not answer counts as down."""

    name = "model_servers"
    lane = "model_servers"
    period_seconds = EVERY_SECONDS
    deadline_seconds = MAX_SERVERS * ANSWER_SECONDS + 2.0
    metrics = (UP, RUNNING, WAITING, CACHE, PREEMPTIONS, VRAM, RAM)

    def _prepare(self) -> None:
        self._servers = servers(self.config.sampling.model_servers)

    def read(self) -> Sample:
        """Return the readings of all servers; NoData where none is configured."""
        if not self._servers or self.host.recorded:
            raise NoData(say("none is named in sampling.model_servers"))
        return Sample(tuple(reading for server in self._servers for reading in self._of(server)))

    def _of(self, server: http_client.Address) -> Iterator[Reading]:
        name = server.place
        try:
            page = http_client.exchange(server, deadline_seconds=ANSWER_SECONDS, max_bytes=MAX_BYTES)
        except (http_client.Unreachable, http_client.ErrorStatus) as error:
            log.debug("%s: %s", name, redaction.without(str(error), [server.target]))
            yield Reading(UP, 0, (name,))
            return
        yield Reading(UP, 1, (name,))
        yield from loaded(name, page) if page.lstrip()[:1] == b"{" else counted(name, page)


def servers(urls: Sequence[str]) -> list[http_client.Address]:
    """Return the pages to read; any other is named in one line of the log."""
    found = []
    for url in urls:
        try:
            found.append(http_client.parsed(url))
        except ValueError as error:
            log.warning("sampling.model_servers: %s: %s", redaction.address(url), error)
    for server in found[MAX_SERVERS:]:
        log.warning("sampling.model_servers: %s is not read: only the first %d are", server.place, MAX_SERVERS)
    return found[:MAX_SERVERS]


def counted(server: str, page: bytes) -> Iterator[Reading]:
    """Yield the readings of a vLLM or llama.cpp page; models and engines of a server are summed up."""
    values: dict[str, list[float]] = {}
    for name, _, value in page_samples(page.decode("utf-8", "replace"), ("vllm:", "llamacpp:")):
        values.setdefault(name, []).append(value)
    for spec, names in _NAMES.items():
        if found := next((values[name] for name in names if name in values), None):
            # Of several caches, the fullest one delays requests.
            total: Number = min(1.0, max(found)) if spec is CACHE else int(min(sum(found), _MAX_MEMORY_BYTES))
            yield Reading(spec, total, (server,))


def loaded(server: str, page: bytes) -> Iterator[Reading]:
    """Yield the models that Ollama has loaded: https://docs.ollama.com/api/ps."""
    try:
        rows = safe_files.parsed(page).get("models")
    except ValueError:
        return
    held: dict[str, tuple[int, int]] = {}
    for row in rows if isinstance(rows, list) else ():
        facts: Mapping[str, Any] = row if isinstance(row, dict) else {}
        name, size, vram = facts.get("name"), facts.get("size"), facts.get("size_vram")
        if isinstance(name, str) and _bytes(size) and _bytes(vram) and len(held) < MAX_MODELS:
            held[_short(name)] = vram, max(0, size - vram)
    for name, (vram, ram) in held.items():
        yield Reading(VRAM, vram, (server, name))
        yield Reading(RAM, ram, (server, name))


def _short(name: str) -> str:
    """Return a model's name for a label; more than its length is searched, as a secret may extend beyond it."""
    return redaction.named(name[: 2 * _MAX_NAME])[:_MAX_NAME]


def _bytes(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MAX_MEMORY_BYTES
