"""Status documents as a daemon words them, in each language; see ``wslgpud.serve.status``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GIB = 1 << 30
WHO = "python3 train.py (pid 8932)"
#: the same moment, worded
WORDS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "headline": f"RAM full in ~43 s: {WHO} +1.1 GiB/min, 3.1 of 24 GiB left",
        "advice": "Save its work, then stop or restart it.",
        "outlook": "~43 s left",
        "calm": "memory is fine",
        "ram": "RAM + swap",
        "steady": "steady",
        "disk": "disk / is full in 3 h",
        "guard": "guard: make -j8, for 3 min",
        "stress": "GPU 0 passed: 14 GiB usable",
    },
    "zh": {
        "headline": f"内存约 43 秒后耗尽：{WHO} +1.1 GiB/分钟，剩余 3.1 / 24 GiB",
        "advice": "先保存它的工作，再停止或重启它。",
        "outlook": "约剩 43 秒",
        "calm": "内存正常",
        "ram": "内存 + 交换区",
        "steady": "平稳",
        "disk": "磁盘 / 将在 3 小时后写满",
        "guard": "守护：make -j8，已运行 3 分钟",
        "stress": "GPU 0 通过：可用 14 GiB",
    },
}


def calm(language: str = "en", **more: Any) -> dict[str, Any]:
    """Return a machine with a card and a training on which nothing grows."""
    words = WORDS[language]
    room = {"capacity_bytes": 24 * GIB, "headroom_bytes": 18 * GIB, "rate_bytes_per_second": 0.0}
    return {
        "seen_by": "daemon",
        "url": "http://127.0.0.1:9655",
        "version": "1",
        "at": "2026-11-21T12:00:00+00:00",
        "level": "ok",
        "headline": words["calm"],
        "verdict": {"level": "ok", "headline": words["calm"]},
        "forecasts": [
            {"resource": "ram", "name": words["ram"], "level": "ok", **room, "outlook": words["steady"]},
            {"resource": "gpu0", "name": "GPU 0", "level": "ok", **room, "outlook": words["steady"]},
        ],
        "swap": {"total": 8 * GIB, "free": 8 * GIB},
        "sources": [],
        "gpus": [
            {
                "index": 0,
                "name": "NVIDIA GeForce RTX 4090",
                "utilization_ratio": 0.97,
                "processes": [{"pid": 8932, "name": "python3", "used_bytes": 6 * GIB}],
            }
        ],
        "processes": [
            {"pid": 4000, "name": "chrome", "command": "chrome", "rss_bytes": 9 * GIB, "swap_bytes": 0, "roles": []},
            {
                "pid": 8932,
                "name": "python3",
                "command": "python3 train.py",
                "rss_bytes": 5 * GIB,
                "swap_bytes": 0,
                "roles": ["gpu", "training"],
            },
        ],
        **more,
    }


def leak(language: str = "en", level: str = "critical", **more: Any) -> dict[str, Any]:
    """Return the same machine 43 s before a training has eaten its RAM."""
    words, document = WORDS[language], calm(language)
    ram = {
        "resource": "ram",
        "name": words["ram"],
        "level": level,
        "capacity_bytes": 24 * GIB,
        "headroom_bytes": 3 * GIB,
        "rate_bytes_per_second": 1.1 * GIB / 60,
        "outlook": words["outlook"],
        "who": WHO,
        "eta_seconds": {"early": 30.0, "middle": 43.0, "late": 70.0},
    }
    verdict = {
        "level": level,
        "subject": "ram",
        "incident": 12,
        "headline": words["headline"],
        "advice": words["advice"],
        "who": WHO,
        "pid": 8932,
        "also": 1,
        "more": "and 1 more is open",
    }
    since = {"since": "2026-11-21T11:59:00+00:00", "acknowledged": False}
    incidents = [
        {"id": 12, "rule": "memory_exhaustion", "level": level, "headline": words["headline"], **since},
        {"id": 9, "rule": "disk_full", "level": "warning", "headline": words["disk"], **since},
    ]
    head = {"level": level, "headline": words["headline"], "verdict": verdict, "incidents": incidents}
    return {**document, **head, "forecasts": [ram, *document["forecasts"][1:]], **more}
