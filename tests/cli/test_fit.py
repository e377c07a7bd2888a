"""``wslgpud fit``: the card's usable VRAM, from the best source that there is, and the plan without any option."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.page.stage import TRACES
from tests.store.made import T0, FakeClock
from tests.stress.support import night
from wslgpud.cli import app
from wslgpud.cli.common import Fault
from wslgpud.cli.fit import Usable, card_of, usable
from wslgpud.config import Config, Sampling, StoreSettings
from wslgpud.host import RecordedHost
from wslgpud.model import GpuSample, Reading, Sample, Snapshot, SourceReport
from wslgpud.risk.headroom import gpu_room
from wslgpud.risk.risk_metrics import LEARNED
from wslgpud.store import Store

pytestmark = pytest.mark.usefixtures("without_torch")

GIB = 1 << 30
DAY_SECONDS = 86400
HOSTS = TRACES.parent / "hosts"
CONFIG = Config(sampling=Sampling(gpu_timeout_seconds=30.0))
CARD = GpuSample(0, "GPU-1", "a card", 16 * GIB, 2 * GIB, 14 * GIB)


def on(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr("wslgpud.cli.fit.Host", lambda: RecordedHost(HOSTS / machine))


def test_a_card_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "two-gpus")
    assert [card and card.index for card in (card_of(CONFIG, 0), card_of(CONFIG, 1))] == [0, 1]
    with pytest.raises(Fault, match="there is no GPU 2"):
        card_of(CONFIG, 2)

    on(monkeypatch, "no-gpu")
    assert card_of(CONFIG, 0) is None


@pytest.mark.parametrize("machine", ["two-gpus", "wsl2-idle"])
def test_without_a_history_what_is_free_now_is_usable(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, machine)
    card = card_of(CONFIG, 0)
    found = usable(card, str(tmp_path / "none.db"), float(T0))

    assert card is not None
    assert found is not None
    room = gpu_room(card, wsl=machine == "wsl2-idle")
    assert found.bytes == (room and room.headroom)
    assert str(found.how) == f"free on {card.name} now; 'wslgpud stress' measures it"


def recorded(folder: Path, *days: tuple[float, Reading]) -> str:
    """Return a history with these readings, each so many days ago."""
    database, clock = str(folder / "wslgpud.db"), FakeClock(T0)
    with Store(database, StoreSettings(), clock=clock) as store:
        for ago, reading in days:
            clock.now = T0 - ago * DAY_SECONDS
            report = SourceReport("made", "ok", Sample((reading,)), clock.now, 0.001)
            store.append(Snapshot(clock.now, clock.now, 1, (report,)))
            assert store.flush()
    return database


def of_days(folder: Path, *days: tuple[float, Reading], card: GpuSample = CARD) -> Usable | None:
    return usable(card, recorded(folder, *days), float(T0))


def test_the_last_complete_stress_run_decides_what_is_usable(tmp_path: Path) -> None:
    with Store(tmp_path / "wslgpud.db", StoreSettings()) as store:
        store.record_stress(night(1, usable_bytes=13 * GIB))
        store.record_stress(night(2, usable_bytes=14 * GIB))
        store.record_stress(night(3, uuid="GPU-2", usable_bytes=9 * GIB))
        store.record_stress(night(4, verdict="skipped"))
        store.record_stress(replace(night(5), values={"free_bytes": 1.0}))
    found = usable(CARD, str(tmp_path / "wslgpud.db"), float(T0))

    assert found is not None
    assert (found.bytes, str(found.how)) == (14 * GIB, "verified by the last stress run")


def limit(gib: float, resource: str = "gpu0") -> Reading:
    return Reading(LEARNED, gib * GIB, (resource, "seen"))


@pytest.mark.parametrize(
    ("days", "gib"),
    [
        ([(2.0, limit(15)), (1.0, limit(14))], 12),
        ([(2.0, limit(14)), (1.0, limit(15))], 13),
        ([(1.0, limit(1))], 0),
        ([(1.0, limit(15, "gpu1"))], None),
        ([(89.0, limit(15))], 13),
        ([(92.0, limit(15))], None),
    ],
)
def test_without_a_stress_run_a_limit_of_90_days_counts(
    days: list[tuple[float, Reading]], gib: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, "two-gpus")
    found = of_days(tmp_path, *days)

    assert found is not None
    if gib is None:
        assert "free on a card now" in str(found.how)
    else:
        assert (found.bytes, "has failed here before" in str(found.how)) == (gib * GIB, True)


def test_without_a_cards_own_use_its_limit_tells_nothing(tmp_path: Path) -> None:
    found = of_days(tmp_path, (1.0, limit(15)), card=replace(CARD, used_bytes=None))

    assert found is not None
    assert "free on a card now" in str(found.how)
    assert usable(None, str(tmp_path / "wslgpud.db"), float(T0)) is None
    assert usable(replace(CARD, free_bytes=None), str(tmp_path / "none.db"), float(T0)) is None


def asked(*words: str) -> Result:
    return CliRunner().invoke(app, ["fit", *words])


def plan(*words: str) -> Any:
    return json.loads(asked(*words, "--usable", "500GiB", "--json").stdout)["plan"]


def test_the_plan_is_as_the_help_says_unless_asked_otherwise() -> None:
    lora = {"mode": "lora", "precision": "bf16", "batch": 1, "context": 4096, "optimizer": "adamw", "rank": 16}
    picture = {"offload": False, "tiling": False, "input": None}

    lora |= {**picture, "checkpointing": False, "targets": "attention"}
    assert plan("7B", "-m", "lora").items() >= lora.items()
    assert plan("7B", "-m", "lora", "--all-linear")["targets"] == "all"
    assert plan("7B", "--engine", "vllm")["mode"] == "inference"


def test_quantized_weights_are_refused_for_full_training() -> None:
    assert asked("7B", "-p", "q4_k_m", "--usable", "80GB").exit_code == 0
    assert asked("7B", "-p", "int4", "-m", "lora", "--usable", "80GB").exit_code == 0
    assert "no adapters can be trained on llama.cpp's formats" in asked("7B", "-p", "q4_k_m", "-m", "lora").output
    assert "int4 weights cannot be trained in full" in asked("7B", "-p", "int4", "-m", "training").output


def test_what_would_be_ignored_for_a_model_by_name_is_refused() -> None:
    for words, why in (
        (("-m", "lora"), "is traced as it is, without adapters"),
        (("-m", "training", "--checkpointing"), "--checkpointing has no meaning for timm:vit"),
        (("-p", "int4"), "--precision int4: there are bf16"),
    ):
        done = asked("timm:vit", *words, "--usable", "8GB")
        assert (done.exit_code, why in " ".join(done.output.split())) == (2, True), done.output


def test_vllm_serves_from_the_whole_card(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "two-gpus")
    settings = {"WSLGPUD_SAMPLING__GPU_TIMEOUT_SECONDS": "30"}
    words = ["fit", "0.5B", "--engine", "vllm", "--gpu", "1", "--json"]
    found = json.loads(CliRunner().invoke(app, words, env=settings).stdout)
    card = card_of(CONFIG, 1)

    assert card is not None
    assert (found["usable_bytes"], found["usable_by"]) == (
        round(0.92 * (card.total_bytes or 0)),
        "vLLM's share of the card",
    )
    refused = CliRunner().invoke(app, [*words, "--gpu-memory-utilization", "1.0"], env=settings)
    assert (refused.exit_code, "At most: --gpu-memory-utilization 0.9" in " ".join(refused.output.split())) == (2, True)
    on(monkeypatch, "no-gpu")
    assert "give the usable VRAM with --usable 14.5GiB" in CliRunner().invoke(app, words).output
