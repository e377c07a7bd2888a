"""Of a GGUF file llama.cpp itself is asked, where it is installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from wslgpud.advise.fit import asking
from wslgpud.advise.fit.asking import LLAMA_CPP, ask_llama_cpp
from wslgpud.advise.fit.plan import CONTEXT_BYTES, NoEstimate, Plan
from wslgpud.advise.fit.source import NamedModel
from wslgpud.cli import app

#: as in https://github.com/ggml-org/llama.cpp/pull/22171
PRINTED = "CUDA0 7401 814 517 \nhost 1280 0 154 \n"


def gguf(file: str) -> NamedModel:
    return NamedModel("some", "gguf", file)


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: int = 0) -> Path:
    program = folder / LLAMA_CPP
    program.write_text(f"#!/bin/sh\necho \"$@\" >'{folder}/words'\ncat <<'END'\n{text}\nEND\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setattr(asking, "program", lambda _: str(program))
    return folder / "words"


def test_its_own_arithmetic_counts_for_all_sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = installed(tmp_path, monkeypatch, PRINTED)
    found = ask_llama_cpp(gguf("/models/some.gguf"), Plan(batch=4, context=8192))

    assert found.parts == {
        "weights": 7401 << 20,
        "keys and values": 814 << 20,
        "activations": 517 << 20,
        "CUDA itself": CONTEXT_BYTES,
    }
    assert words.read_text().split() == ["--model", "/models/some.gguf", "--ctx-size", "32768", "--fit-print", "on"]


@pytest.mark.parametrize(
    ("text", "status", "why"),
    [
        ("", 0, "exit status 0"),
        ("host 1 2 3", 0, "is built without CUDA"),
        (PRINTED, 1, "exit status 1"),
        ("CUDA0 lots", 0, "0"),
    ],
)
def test_an_answer_that_is_none_is_not_believed_and_says_why(
    text: str, status: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, text, status)

    with pytest.raises(NoEstimate, match=f"{LLAMA_CPP}.*{why}"):
        ask_llama_cpp(gguf("x.gguf"), Plan())


def test_where_it_is_not_installed_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "program", lambda _: None)

    with pytest.raises(NoEstimate, match="is not installed"):
        ask_llama_cpp(gguf("x.gguf"), Plan())


def fit(folder: Path, *words: str) -> tuple[int, str]:
    (folder / "some.gguf").write_bytes(b"")
    os.truncate(folder / "some.gguf", 4 << 30)
    done = CliRunner().invoke(app, ["fit", str(folder / "some.gguf"), *words], env={"COLUMNS": "200"})
    return done.exit_code, " ".join(done.output.split())


def test_the_command_gives_its_answer_and_tries_shorter_contexts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, PRINTED)

    assert fit(tmp_path, "--usable", "12GiB")[0] == 0
    code, said = fit(tmp_path, "--usable", "9GiB")
    assert (code, "It does not fit" in said, "context 4096, llama.cpp" in said) == (1, True, True)
    assert "int4 weights" not in said


def test_without_it_a_file_takes_its_size_at_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "program", lambda _: None)
    small, large = (fit(tmp_path, "--usable", size) for size in ("80GiB", "4GiB"))

    assert (small[0], large[0]) == (3, 1)
    assert "It may not fit: it takes 4.8 GiB or more" in small[1]
    assert "Without keys and values, which only llama.cpp tells: llama-fit-params is not installed" in small[1]
    assert "--precision has no meaning for some" in fit(tmp_path, "--precision", "int4")[1]
