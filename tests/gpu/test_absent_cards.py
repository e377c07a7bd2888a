"""Cards that the driver counts and does not show: lost ones, none at all, and memory that it keeps from us."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tests.gpu.test_recordings import GPU, SYSTEM
from tests.hosts.machines import HERE
from wslgpud.alerts.rules import RuleEngine
from wslgpud.cli import app
from wslgpud.host import NoData, SourceError
from wslgpud.model import Level, Snapshot, SourceReport

#: NVML's errors for one handle while another answers, each with a report of it
REFUSED = [
    ("UNKNOWN", "https://github.com/NVIDIA/dcgm-exporter/issues/604"),
    ("UNKNOWN", "https://github.com/meta-llama/llama-models/issues/200"),
    ("UNKNOWN", "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/387"),
    ("GPU_IS_LOST", "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1151"),
    ("NO_PERMISSION", "https://github.com/NVIDIA/nvidia-container-toolkit/issues/69"),
    ("RESET_REQUIRED", "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/446"),
]


def up(sample):
    return [(r.labels, r.value) for r in sample.readings if r.spec.name == "gpu_up"]


@pytest.mark.parametrize(("error", "report"), REFUSED)
def test_a_card_refused_from_the_start_is_lost_by_its_number(recorded, open_source, error, report):
    assert report.startswith("https://")
    source = open_source(recorded({"system": SYSTEM, "gpus": [{"*": {"error": error}}, GPU]}))
    sample = source.read()

    assert sorted(up(sample)) == [(("0", ""), 0), (("1", GPU["nvmlDeviceGetUUID"]), 1)]
    assert {r.value for r in sample.readings if r.spec.name == "gpu_lost"} == {1}
    assert source.lost == {"0": error}
    assert [gpu.index for gpu in sample.gpus] == [1]


def test_a_card_refused_from_the_start_is_an_alarm(recorded, open_source):
    source = open_source(recorded({"system": SYSTEM, "gpus": [GPU, {"*": {"error": "UNKNOWN"}}]}))
    engine, changes = RuleEngine(), []
    for second in range(8):
        report = SourceReport("gpu", "ok", source.read(), 0.0, float(second))
        changes += engine.observe(Snapshot(1.79e9 + second, float(second), second, (report,)))

    ((rule, resource, level, facts),) = [(c.rule, c.resource, c.new, dict(c.facts)) for c in changes]
    assert (rule, resource, level, facts) == ("gpu_lost", "gpu1", Level.CRITICAL, {})


def test_a_known_card_that_is_lost_is_not_lost_twice(machine, source):
    machine.set(gpus=2)
    source.read()
    machine.gpu(1, lost=1)
    assert [value for _, value in up(source.read())] == [1, 0]
    machine.clock.now += 31  # a new start, which learns no name of it
    sample = source.read()

    assert [(labels[0], bool(labels[1]), value) for labels, value in up(sample)] == [("0", True, 1), ("1", True, 0)]


@pytest.mark.parametrize(("files", "remedy"), [({"/dev/dxg": ""}, "Windows' device manager"), ({}, "RmInitAdapter")])
def test_a_driver_without_a_card_is_said_to_work(recorded, open_source, files, remedy):
    # https://github.com/microsoft/WSL/issues/8134, https://github.com/microsoft/WSL/issues/9099
    with pytest.raises(NoData, match=f"the NVIDIA driver works, but shows no GPU; .*{remedy}") as told:
        open_source(recorded({"system": SYSTEM, "gpus": []}, files)).read()
    assert "install the NVIDIA driver" not in str(told.value)


def test_all_cards_refused_is_a_failure_of_the_driver(recorded, open_source):
    with pytest.raises(SourceError, match="unknown errors"):
        open_source(recorded({"system": SYSTEM, "gpus": [{"*": {"error": "UNKNOWN"}}] * 2})).read()


def test_a_refused_call_is_counted_by_its_error(recorded, open_source):
    denied = {**GPU, **dict.fromkeys(("nvmlDeviceGetMemoryInfo(33554472)", "nvmlDeviceGetMemoryInfo"), NO)}
    source = open_source(recorded({"system": SYSTEM, "gpus": [denied]}))
    assert [gpu.total_bytes for gpu in source.read().gpus] == [None]
    assert {r.labels: r.value for r in source.own() if r.spec.name == "gpu_nvml_errors"}[("NO_PERMISSION",)] == 2


NO = {"error": "NO_PERMISSION"}


@pytest.mark.parametrize(
    ("machine_name", "shown"),
    [
        ("gpu-unreachable", "GPU 1"),
        ("gpu-unreachable", "lost: it does not answer"),
        ("mig-container", "memory unknown: NVML refuses it to this user or container"),
        ("no-card", "GPU: the NVIDIA driver works, but shows no GPU"),
    ],
)
def test_status_shows_what_is_missing_of_the_cards(machine_name, shown, tmp_path):
    line = ["status", "--host-root", str(HERE / machine_name), "--state", str(tmp_path)]
    assert shown in CliRunner().invoke(app, line, env={"COLUMNS": "200"}).output
