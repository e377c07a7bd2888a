"""vLLM, llama.cpp and Ollama by their own pages, as their documentation shows them; none of them is at hand."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.hostile import ENDLESS, answers, hostile
from wslgpud.config import Config, Sampling
from wslgpud.host import Host, NoData
from wslgpud.sources import model_servers
from wslgpud.sources.model_servers import ModelServerSource, counted, loaded

#: https://docs.vllm.ai/en/stable/usage/metrics/; two engines
VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="unsloth/Llama-3.2-1B-Instruct"} 8.0
vllm:num_requests_running{engine="1",model_name="unsloth/Llama-3.2-1B-Instruct"} 7.0
vllm:num_requests_waiting{engine="0",model_name="unsloth/Llama-3.2-1B-Instruct"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="unsloth/Llama-3.2-1B-Instruct"} 0.93
vllm:kv_cache_usage_perc{engine="1",model_name="unsloth/Llama-3.2-1B-Instruct"} 0.41
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="unsloth/Llama-3.2-1B-Instruct"} 12.0
"""
#: before 0.10
OLD_VLLM = b'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'
#: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
LLAMA = b"""# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
llamacpp:kv_cache_usage_ratio 0.25
"""
#: https://docs.ollama.com/api/ps
OLLAMA = json.dumps(
    {
        "models": [
            {
                "name": "gemma3",
                "model": "gemma3",
                "size": 6591830464,
                "digest": "a2af6cc3eb7fa8be8504abaf9b04e88f17a119ec3f04a3addf55f92841195f5a",
                "details": {"format": "gguf", "family": "gemma3", "parameter_size": "4.3B"},
                "expires_at": "2025-10-17T16:47:07.93355-07:00",
                "size_vram": 5333539264,
                "context_length": 4096,
            }
        ]
    }
).encode()


def source(*urls: str) -> ModelServerSource:
    return ModelServerSource(Host(), replace(Config(), sampling=Sampling(model_servers=urls)))


def values(page: bytes) -> dict[str, float]:
    """Return the readings from a server that serves this page, by metric name and labels."""
    with hostile(answers("200 OK", page)) as server:
        readings = source(f"{server.url}/metrics").read().readings
        return {f"{r.spec.name} {' '.join(r.labels)}".replace(server.place, "here"): r.value for r in readings}


def test_a_server_reports_how_full_its_share_is_and_who_waits() -> None:
    assert values(VLLM) == {
        "model_server_up here": 1,
        "model_server_requests_running here": 15,
        "model_server_requests_waiting here": 3,
        "model_server_cache_used_ratio here": 0.93,  # of the engine that holds up requests
        "model_server_preemptions here": 12,
    }


def test_older_names_and_llama_cpp_are_understood() -> None:
    assert values(OLD_VLLM)["model_server_cache_used_ratio here"] == 0.5
    assert values(LLAMA) == {
        "model_server_up here": 1,
        "model_server_requests_running here": 1,
        "model_server_requests_waiting here": 2,
        "model_server_cache_used_ratio here": 0.25,
    }


def test_cache_use_and_request_counts_never_exceed_their_bounds() -> None:
    page = b"vllm:kv_cache_usage_perc 1.7\nvllm:num_requests_running 9e99\nvllm:num_requests_waiting 1 1700000000\n"
    found = {r.spec.name: r.value for r in counted("here", page)}
    assert found == {
        "model_server_cache_used_ratio": 1.0,
        "model_server_requests_running": 1 << 50,
        "model_server_requests_waiting": 1,
    }


def test_a_model_larger_than_any_machine_is_not_believed() -> None:
    rows = [{"name": f"{size}", "size": size, "size_vram": size} for size in (0, 1 << 50, (1 << 50) + 1)]
    found = [(r.labels[1], r.value) for r in loaded("here", json.dumps({"models": rows}).encode())]
    assert found == [("0", 0), ("0", 0), (f"{1 << 50}", 1 << 50), (f"{1 << 50}", 0)]


def test_a_ninth_server_is_not_read_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    found = model_servers.servers([f"http://127.0.0.1:{port}/metrics" for port in range(1, 10)])

    assert [server.place for server in found] == [f"127.0.0.1:{port}" for port in range(1, 9)]
    assert caplog.messages == ["sampling.model_servers: 127.0.0.1:9 is not read: only the first 8 are"]


def test_ollama_tells_what_of_each_model_is_on_card_or_in_ram() -> None:
    assert values(OLLAMA) == {
        "model_server_up here": 1,
        "model_server_vram_bytes here gemma3": 5333539264,
        "model_server_ram_bytes here gemma3": 6591830464 - 5333539264,
    }


def test_a_server_that_is_down_or_hangs_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_servers, "ANSWER_SECONDS", 0.3)
    with hostile(ENDLESS["a dripping body"]) as endless:
        up = {r.labels[0]: r.value for r in source("http://127.0.0.1:1/metrics", endless.url).read().readings}
    monkeypatch.undo()
    with hostile(answers("200 OK", LLAMA)) as server:
        found = source("http://127.0.0.1:1/metrics", server.url).read().readings

    assert up == {"127.0.0.1:1": 0, endless.place: 0}
    assert [r.value for r in found if r.labels == (server.place,)] == [1, 1, 2, 0.25]


def test_a_server_that_is_down_is_logged_without_its_page(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=model_servers.__name__)
    down = source("http://127.0.0.1:1/metrics")
    assert [(r.spec, r.value) for r in down.read().readings] == [(model_servers.UP, 0)]

    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == ["127.0.0.1:1"]


@pytest.mark.parametrize(("length", "read"), [(4000, True), (4001, False)])
def test_a_line_longer_than_any_of_theirs_is_left_out(length: int, read: bool) -> None:
    line = 'vllm:num_requests_running{{model_name="{}"}} 8'
    page = line.format("m" * (length - len(line.format("")))).encode()

    assert (len(page), bool([*counted("here", page)])) == (length, read)


def test_without_servers_nothing_is_read_and_nothing_is_wrong() -> None:
    with pytest.raises(NoData, match=r"sampling\.model_servers"):
        source().read()


def test_an_invalid_address_is_reported_once_without_its_secret(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(NoData):
        source("ftp://me:hunter2hunter2@127.0.0.1/x").read()

    assert "sampling.model_servers: ftp://127.0.0.1" in caplog.text
    assert "hunter2hunter2" not in caplog.text


@given(st.sampled_from([VLLM, LLAMA, OLLAMA]), st.integers(0, 1200), st.binary(max_size=40))
def test_whatever_is_served_is_read_without_a_fault(page: bytes, cut: int, junk: bytes) -> None:
    for reading in (*counted("here", page[:cut] + junk + page[cut:]), *loaded("here", page[:cut] + junk + page[cut:])):
        assert reading.value >= 0


@pytest.mark.parametrize("size", [-1, 1 << 60, 1.5, True, "much", None])
def test_a_size_that_no_machine_has_is_not_known(size: object) -> None:
    page = {"models": [{"name": "m", "size": size, "size_vram": size}, "row", {"name": 5, "size": 1, "size_vram": 1}]}

    assert list(loaded("here", json.dumps(page).encode())) == []
    assert list(loaded("here", b'{"models": 7}')) == list(loaded("here", b"{" * 100_000)) == []


def test_a_thousand_models_become_a_few_with_short_names() -> None:
    rows = [{"name": f"\x1b]0;x\x07{n}{'-y' * 5000}", "size": 2, "size_vram": 1} for n in range(1000)]
    names = {r.labels[1] for r in loaded("here", json.dumps({"models": rows}).encode())}

    assert len(names) == 32
    assert all(name.isprintable() and len(name) == 200 for name in names)
