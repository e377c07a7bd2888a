"""Recordings: written ones can be read back, broken ones are reported with their line."""

import dataclasses
import gzip
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.traces.writing import write_trace
from wslgpud.model import (
    CgroupState,
    Expected,
    GpuProcess,
    GpuSample,
    Observation,
    ProcessSample,
    PsiState,
    RamState,
    SwapState,
)
from wslgpud.risk.trace import TraceError, observation_from_row, read_trace, row_from_observation

HEADER = '{"trace": 1, "interval_s": 0.5, "host": {}}\n'


def trace(tmp_path, text, name="t.jsonl"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def packed(tmp_path, data):
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(data)
    return path


def problem(tmp_path, text):
    with pytest.raises(TraceError) as error:
        list(read_trace(trace(tmp_path, text)))
    return error.value


def test_the_recordings_in_the_repository_can_be_read(traces):
    for path in traces:
        observations = list(read_trace(path))
        assert len(observations) > 50
        assert all(o.ram is not None for o in observations)


def test_what_is_written_is_what_is_read(tmp_path):
    gpu = GpuSample(1, "GPU-1", "card", 10, 4, 6, 1, 0.5, 0.25, 99.5, 40.0, (GpuProcess(7, "python", None),))
    seen = [
        Observation(
            t=0.5,
            ram=RamState(100, 60, shmem=5),
            psi={"memory": PsiState(1, 2, 0.5, 0.25)},
            gpus=(gpu,),
            processes=(
                ProcessSample(7, 99, "python", 30, 2, command="python a.py"),
                ProcessSample(8, 99, "python", 3, 2, None, frozenset({"gpu"}), "", "", 1.5, 900, 2, 4096),
            ),
            cgroups=(CgroupState("/a", 50, 20, inactive_file=3),),
        ),
        Observation(t=2.0, gap_expected=True, exhausted=("gpu1",)),
    ]
    for name in ("t.jsonl", "t.jsonl.gz"):
        path = tmp_path / name
        assert write_trace(path, seen, interval_seconds=0.5, host={"kernel": "6.1"}) == 2
        assert list(read_trace(path)) == seen


FULL = Observation(
    t=1.23456,
    ram=RamState(100, 60, shmem=5),
    swap=SwapState(50, 20),
    windows=RamState(200, 80),
    psi={"memory": PsiState(1, 2, 0.5, 0.25)},
    gpus=(
        GpuSample(0, "", "card", 10, utilization_ratio=0.12549, processes=(GpuProcess(7, "python", None),)),
        GpuSample(1, "GPU-1", "card", power_watts=99.56, self_reported=(GpuProcess(0, "java", 4),)),
    ),
    processes=(
        ProcessSample(7, 0, "python", 30, 2),
        ProcessSample(8, 99, "python", 3, 0, 1000, frozenset({"gpu", "big"}), "python a.py", "/a", 1.5, 900, 2, 4096),
    ),
    cgroups=(CgroupState("/a", 50, 20, inactive_file=3),),
    gap_expected=True,
    exhausted=("gpu1",),
    late=("windows",),
    expected=(Expected("ram", "make", 9, 4, (7, 8)),),
)
ROW = {
    "t": 1.235,
    "ram": {"total": 100, "available": 60, "shmem": 5},
    "swap": {"total": 50, "free": 20},
    "windows": {"total": 200, "available": 80},
    "psi": {"memory": {"some_total_us": 1, "full_total_us": 2, "some_avg10": 0.5, "full_avg10": 0.25}},
    "gpus": [
        {"index": 0, "name": "card", "total": 10, "util": 12.5, "procs": [{"pid": 7, "name": "python", "used": None}]},
        {
            "index": 1,
            "uuid": "GPU-1",
            "name": "card",
            "power_w": 99.56,
            "procs": [],
            "told": [{"pid": 0, "name": "java", "used": 4}],
        },
    ],
    "procs": [
        {"pid": 7, "name": "python", "rss": 30, "swap": 2},
        {
            "pid": 8,
            "start": 99,
            "name": "python",
            "rss": 3,
            "swap": 0,
            "command": "python a.py",
            "cgroup": "/a",
            "cpu": 1.5,
            "faults": 900,
            "major_faults": 2,
            "pinned": 4096,
            "roles": ["big", "gpu"],
        },
    ],
    "cgroups": [{"path": "/a", "limit": 50, "current": 20, "inactive_file": 3}],
    "gap_expected": True,
    "exhausted": ["gpu1"],
    "late": ["windows"],
    "expected": [{"resource": "ram", "who": "make", "peak": 9, "used": 4, "pids": (7, 8)}],
}


def test_a_row_has_every_known_value_and_nothing_of_the_unknown():
    assert row_from_observation(FULL) == ROW
    assert row_from_observation(Observation(t=0.0)) == {"t": 0.0}


def test_a_row_is_read_back_without_users_and_to_its_decimals():
    read = observation_from_row(json.loads(json.dumps(ROW)), wsl=True)
    first, second = FULL.gpus
    mine, other = FULL.processes

    assert read == dataclasses.replace(
        FULL,
        t=1.235,
        gpus=(dataclasses.replace(first, utilization_ratio=0.125), second),
        processes=(mine, dataclasses.replace(other, uid=None)),
        wsl=True,
    )
    assert observation_from_row({"t": 0}) == Observation(t=0.0)


def test_of_a_process_only_its_pid_name_and_memory_must_be_known():
    least = {"pid": 7, "name": "python", "rss": 30}
    rows = [least, {"name": "python", "rss": 30}, {"pid": 7, "name": "python"}]

    assert observation_from_row({"t": 0, "procs": rows}).processes == (ProcessSample(7, 0, "python", 30, 0),)


def test_invalid_pids_of_an_expected_command_are_ignored():
    command = {"resource": "ram", "who": "make", "peak": 9, "used": 4}
    rows = [command | {"pids": [7, "8", None]}, command | {"pids": 7}, command]

    assert [one.pids for one in observation_from_row({"t": 0, "expected": rows}).expected] == [(7,), (), ()]


def test_a_wsl_header_marks_every_observation_as_wsl(tmp_path):
    path = tmp_path / "t.jsonl"
    write_trace(path, [Observation(t=0.0)], interval_seconds=1.0, host={"wsl": True})
    assert next(read_trace(path)).wsl


def test_missing_keys_and_unknown_vram_of_processes_are_accepted(tmp_path):
    line = json.dumps({"t": 1, "gpus": [{"total": 5, "used": 2, "procs": [{"pid": 3, "name": "x", "used": None}]}]})
    text = HEADER + line + "\n" + '{"t": 2, "new_in_version_9": {}}\n'
    observation, _ = read_trace(trace(tmp_path, text))
    assert observation.ram is None
    assert observation.gpus[0].index == 0
    assert observation.gpus[0].processes[0].used_bytes is None


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "empty"),
        ("hello\n", 1, "not JSON"),
        ('{"t": 1}\n', 1, "not a trace of version 1"),
        ('{"trace": 2}\n', 1, "not a trace of version 1"),
        (HEADER + '{"t": 1}\n{"t": 2\n', 3, "not JSON"),
        (HEADER + '{"ram": {}}\n', 2, "'t' is missing"),
        (HEADER + '{"t": "now"}\n', 2, "'t' must be a number"),
        (HEADER + '{"t": NaN}\n', 2, "'t' is missing or is not a finite number"),
        (HEADER + '{"t": 1}\n{"t": 0.5}\n', 3, "time goes back"),
        (HEADER + '{"t": 1, "ram": 7}\n', 2, "'ram' must be an object"),
        (HEADER + '{"t": 1, "ram": {"total": "big", "available": 1}}\n', 2, "'total' must be a number"),
        (HEADER + '{"t": 1, "gpus": {}}\n', 2, "'gpus' must be a list"),
        (HEADER + "[1]\n", 2, "not a JSON object"),
        (HEADER + '{"t": 1, "gpus": [7]}\n', 2, "'gpus' must be a list of objects"),
        (HEADER + '{"t": 1, "exhausted": [7]}\n', 2, "'exhausted' must be a list of names"),
        (HEADER + '{"t": true}\n', 2, "'t' must be a number, not True"),
        ("\n" + HEADER, 1, "not JSON"),
        (HEADER + '\n\n{"t": 1\n', 4, "not JSON"),
    ],
)
def test_a_broken_trace_gets_one_clear_line_with_its_number(tmp_path, text, line, says):
    error = problem(tmp_path, text)
    assert error.line == line
    assert says in str(error)
    assert f"line {line}" in str(error)
    assert "\n" not in str(error)


def test_what_other_recorders_write_for_the_unknown_is_unknown(tmp_path):
    ram = '{"total": 100, "available": NaN}'
    gpu = '{"index": null, "uuid": null, "name": null, "total": 80, "used": 8, "power_w": Infinity}'
    other = gpu.replace("null", "1", 1)
    lines = f'{{"t": 1, "ram": {ram}, "gpus": [{gpu}, {other}], "procs": null}}\n'
    (seen,) = read_trace(trace(tmp_path, HEADER + lines))
    assert seen.ram is None
    assert [(g.index, g.uuid, g.name, g.power_watts) for g in seen.gpus] == [(0, "", "", None), (1, "", "", None)]


def test_crlf_a_byte_order_mark_and_empty_lines_are_harmless(tmp_path):
    path = tmp_path / "t.jsonl"
    text = HEADER + '{"t": 1}\n\n{"t": 1}\n  \n{"t": 2}\n\n'
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert [o.t for o in read_trace(path)] == [1.0, 1.0, 2.0]


def test_a_compressed_trace_that_was_cut_off_says_so(tmp_path):
    whole = gzip.compress((HEADER + '{"t": 1}\n' * 4000).encode())
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match="truncated"):
        list(read_trace(path))


def cut(path, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    cuts = []
    return list(read_trace(path, cuts.append)), cuts


def test_a_recording_cut_by_a_crash_is_read_up_to_the_named_cut(tmp_path, traces):
    for name in ("t.jsonl", "t.jsonl.gz"):
        path = tmp_path / name
        seen = list(read_trace(traces[0]))
        write_trace(path, seen, interval_seconds=0.5)
        before, (where,) = cut(path, 0.6)
        assert before == seen[: len(before)]
        assert len(before) > 0.4 * len(seen)
        assert where.line == len(before) + 2
        assert "truncated" in str(where.problem)


def test_a_recording_may_be_cut_in_a_sample_but_not_its_header(tmp_path):
    cuts = []
    assert list(read_trace(trace(tmp_path, HEADER + '{"t"'), cuts.append)) == []
    assert [where.line for where in cuts] == [2]
    with pytest.raises(TraceError, match="line 1: not JSON"):
        list(read_trace(trace(tmp_path, HEADER[:9]), pytest.fail))
    with pytest.raises(TraceError, match="line 1: the compressed data is truncated here"):
        list(read_trace(packed(tmp_path, gzip.compress(HEADER.encode())[:15]), pytest.fail))


def test_damaged_compressed_data_is_an_error_naming_the_line(tmp_path):
    whole = gzip.compress((HEADER + '{"t": 1}\n').encode())
    for damaged in (whole[:-8] + b"\0\0\0\0" + whole[-4:], whole + b"more"):
        with pytest.raises(TraceError, match=r"line 3: the compressed data is damaged \("):
            list(read_trace(packed(tmp_path, damaged), pytest.fail))


def test_a_line_of_a_mebibyte_is_read_and_no_longer_one(tmp_path):
    def length(size):
        return HEADER + '{"t": 1}'.ljust(size - 1) + "\n" + " " * 40 + "\n"

    assert len(list(read_trace(trace(tmp_path, length(1_048_576))))) == 1
    error = problem(tmp_path, length(1_048_577))
    assert (error.line, str(error.problem)) == (2, "a line has at most 1,048,576 bytes, and this one is longer")


def test_a_trace_is_read_up_to_its_limit(tmp_path, monkeypatch):
    text = HEADER + '{"t": 1}\n'
    monkeypatch.setattr("wslgpud.risk.trace.MAX_BYTES", len(text))
    assert len(list(read_trace(trace(tmp_path, text)))) == 1
    monkeypatch.setattr("wslgpud.risk.trace.MAX_BYTES", len(text) - 1)
    error = problem(tmp_path, text)
    assert (error.line, str(error.problem)) == (2, "a trace has at most 52 bytes once it is inflated")


def test_a_line_that_is_broken_in_the_middle_is_no_cut(tmp_path):
    path = trace(tmp_path, HEADER + '{"t": 1}\n{"t": 2\n{"t": 3}\n')
    with pytest.raises(TraceError, match="line 3"):
        list(read_trace(path, pytest.fail))


def test_a_recording_without_a_last_newline_is_whole(tmp_path):
    assert len(list(read_trace(trace(tmp_path, HEADER + '{"t": 1}'), pytest.fail))) == 1


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_give_a_trace_or_its_one_error(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("t") / "t.jsonl"
    path.write_bytes(HEADER.encode() + raw)
    try:
        list(read_trace(path))
    except TraceError as error:
        assert error.line >= 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["ram", "swap", "vm", "psi", "gpus", "procs", "cgroups", "exhausted", "late", "expected"])


@settings(max_examples=200, deadline=None)
@example({"expected": [{"resource": "ram", "who": "make", "peak": 2, "used": 1, "pids": 5}]})
@given(st.dictionaries(keys, json_values))
def test_any_value_is_either_accepted_or_refused_by_name(row):
    try:
        observation = observation_from_row({"t": 1.0} | row)
    except ValueError as error:
        assert "must be" in str(error)
    else:
        assert row_from_observation(dataclasses.replace(observation, t=2.0))["t"] == 2.0
