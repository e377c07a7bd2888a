"""The search for English in Chinese texts sees words, and takes names for names."""

from __future__ import annotations

import pytest

from tests.words.latin import latin_words


@pytest.mark.parametrize(
    "text",
    [
        "GPU 0 已满：3.0 GiB 位于 Windows 的内存中，很慢",
        "python3 train.py (pid 8932) 在 23 秒前被终止，增长 +310 MiB/分钟",
        "请运行 sudo sysctl vm.swappiness=10 && sudo sysctl --system",
        "wsl --shutdown        (在 Windows 中)",
        "先看 wslgpud incidents，再试 wslgpud wslconfig check",
        "调低 MAX_JOBS：wslgpud guard -- 编译命令",
        "torch 2.5.1+cu124 不含 sm_120，见 https://developer.nvidia.com/cuda-downloads",
        "在 .wslconfig 的 [wsl2] 下写 guiApplications=false",
        "/mnt/c/Users/me/data/train.bin 被打开；用 --all 显示全部",
    ],
)
def test_names_units_paths_and_commands_are_no_english(text):
    assert latin_words(text) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("内存 is nearly full", ["is", "nearly", "full"]),
        ("EMERGENCY 内存将在 5 秒后用完", ["EMERGENCY"]),
        ("wslgpud cannot read 配置", ["cannot", "read"]),
        ("GPU 0：steady", ["steady"]),
        ("cannot read /proc/stat：Permission denied", ["cannot", "read", "Permission", "denied"]),
        ("状态: could not tell", ["could", "not", "tell"]),
    ],
)
def test_words_of_english_are_found(text, words):
    assert latin_words(text) == words


def test_a_test_names_what_its_machine_calls_its_own():
    assert latin_words("NVIDIA H200 由 annegret 使用", names=("annegret",)) == []
    assert latin_words("annegretes", names=("annegret",)) == ["annegretes"]
