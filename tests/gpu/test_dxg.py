"""What the probe learns from ``/dev/dxg``, by a stand-in that answers as the driver's source does."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import pytest

from tests.support.dxg import GIB, Adapter, Entry, Kernel
from wslgpud.probes import dxg
from wslgpud.probes.dxg import DxgDevice, DxgFailed, DxgReader, PatientDxgReader
from wslgpud.probes.nvml_probe import WindowsVram


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def reader_of(kernel: Kernel, clock: Clock | None = None) -> DxgReader:
    return DxgReader(lambda: DxgDevice("/dev/null", kernel.ioctl), clock or Clock())


def test_each_listed_process_is_read_with_what_it_holds():
    kernel = Kernel([Adapter(entries=[Entry(812, 9 * GIB, 15 * GIB, demoted=GIB), Entry(900, 2 * GIB)])])
    (card,) = reader_of(kernel).read()
    assert card["vram_bytes"] == 16 * GIB
    assert card["luid"] == "0x0_0x1234"
    assert card["processes"] == [[812, 15 * GIB, 9 * GIB, 9 * GIB, GIB], [900, 15 * GIB, 2 * GIB, 2 * GIB, 0]]
    assert card["own"] == [15 * GIB, 0, 0, 0]
    assert not kernel.open_handles
    assert not kernel.log


def test_processes_of_other_namespaces_are_not_asked_for():
    kernel = Kernel([Adapter(entries=[Entry(7, 9 * GIB, namespace="container"), Entry(os.getpid(), GIB)])])
    (card,) = reader_of(kernel).read()
    assert card["processes"] == []


def test_two_cards_come_with_their_addresses_where_told():
    kernel = Kernel([Adapter((1, 0), pci=(1, 0, 0)), Adapter((2, 0), pci=(0x41, 0, 0)), Adapter((3, 0), GIB // 8)])
    cards = reader_of(kernel).read()
    assert [card["pci"] for card in cards] == ["00000000:01:00.0", "00000000:41:00.0", ""]
    assert [card["vram_bytes"] for card in cards] == [16 * GIB, 16 * GIB, GIB // 8]
    assert not kernel.open_handles


def test_a_kernel_without_the_list_is_not_asked_again():
    kernel, clock = Kernel([Adapter()], "einval"), Clock()
    reader = reader_of(kernel, clock)
    for _ in range(3):
        with pytest.raises(DxgFailed) as failed:
            reader.read()
        clock.now += 10 * dxg.RETRY_SECONDS
    assert (failed.value.call, failed.value.error) == ("LX_DXENUMPROCESSES", "ENOTTY")
    assert kernel.log == ["misc dxg: dxgk: bad ioctl: Ioctl failed: -25"]


def test_a_kernel_without_statistics_names_that_call():
    with pytest.raises(DxgFailed) as failed:
        reader_of(Kernel([Adapter()], "no statistics")).read()
    assert failed.value.call == "LX_DXQUERYSTATISTICS"


def test_a_device_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(DxgFailed) as failed:
        DxgReader(lambda: DxgDevice(str(tmp_path / "dxg"))).read()
    assert (failed.value.call, failed.value.error) == ("open", "ENOENT")


def test_who_ended_after_being_listed_is_asked_for_once():
    kernel, clock = Kernel([Adapter(entries=[Entry(812, GIB), Entry(814, GIB)])]), Clock()
    listing = Kernel([Adapter(entries=[Entry(812, GIB), Entry(813, GIB), Entry(814, GIB)])])
    kernel._enum_processes = listing._enum_processes
    reader = reader_of(kernel, clock)
    for _ in range(3):
        (card,) = reader.read()
        clock.now += 1
    assert [row[0] for row in card["processes"] if any(row[1:])] == [812, 814]
    assert len(kernel.log) == 1


def test_an_adapter_that_has_gone_answers_nothing_but_zeros():
    kernel, clock = Kernel([Adapter(entries=[Entry(812, GIB)])]), Clock()
    reader = reader_of(kernel, clock)
    reader.read()
    kernel.adapters = [Adapter((9, 9), entries=[Entry(812, GIB)])]
    with pytest.raises(DxgFailed):
        reader.read()
    clock.now += dxg.RETRY_SECONDS
    assert reader.read()[0]["luid"] == "0x9_0x9"


def test_a_kernel_that_hangs_costs_one_wait_and_is_told():
    kernel = Kernel([Adapter(entries=[Entry(812, GIB)])], hang=threading.Event())
    patient = PatientDxgReader(0.4, reader_of(kernel).read)
    assert [patient.ask(0.4), patient.ask(0.0)] == [{"failed": ["ioctl", "HANGS"]}] * 2
    asked = len(kernel.calls)
    kernel.hang.set()
    patient._thread.join(10)
    assert len(kernel.calls) <= asked + 3
    assert patient.ask(0.0) == {"failed": ["ioctl", "HANGS"]}, "an answer as late as that is old"
    assert patient.ask(10)["adapters"][0]["processes"][0][0] == 812


def test_nvml_does_not_wait_for_a_kernel_that_is_slow():
    kernel = Kernel([Adapter(entries=[Entry(812, GIB)])], hang=threading.Event())
    patient = PatientDxgReader(100.0, reader_of(kernel).read)
    began = time.monotonic()
    assert [patient.ask(0.05), patient.ask(0.05)] == [{}, {}]
    assert time.monotonic() - began < 1.0

    kernel.hang.set()
    patient._thread.join(10)
    assert patient.ask(0.0)["adapters"][0]["processes"][0][0] == 812


def test_a_count_beyond_what_was_asked_for_is_cut():
    kernel = Kernel([Adapter(entries=[Entry(812, GIB)])])
    lie = kernel._enum_processes

    def endless(argument):
        back, table = lie(argument)
        return back[:16] + b"\xff\xff\xff\xff" + back[20:], table

    kernel._enum_processes = endless
    (card,) = reader_of(kernel).read()
    assert [row[0] for row in card["processes"] if any(row[1:])] == [812]


def test_vram_that_changes_while_windows_answers_is_read_again(monkeypatch):
    monkeypatch.setattr(dxg, "DEVICE", "/dev/null")
    windows, asked = WindowsVram(1.0), []
    answers = iter([{}, {"adapters": ["of 8 GiB"]}, {"adapters": ["of 4 GiB"]}])
    monkeypatch.setattr(windows, "_reader", SimpleNamespace(ask=lambda _: next(answers), seconds=0.1))
    for second, used in enumerate((8, 4, 4, 4)):
        values = {"gpu_memory_used_bytes": used * GIB, "gpu_memory_total_bytes": 16 * GIB}
        reply = {"gpus": [{"uuid": "GPU-1", "values": values}]}
        windows.sample(reply, None, float(second))
        asked.append(reply.get("dxg", {}).get("adapters"))
    assert asked == [None, ["of 8 GiB"], ["of 4 GiB"], None]
