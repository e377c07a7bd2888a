"""Recordings: written ones can be read back, broken ones are reported with their line."""

import dataclasses
import gzip
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.traces.writing import write_trace
from wslgpud.model import CgroupState, GpuProcess, GpuSample, Observation, ProcessSample, PsiState, RamState
from wslgpud.risk.trace import TraceError, observation_from_row, read_trace, row_from_observation

HEADER = '{"trace": 1, "interval_s": 0.5, "host": {}}\n'


def trace(tmp_path, text, name="t.jsonl"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
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


def test_a_header_that_says_wsl_makes_every_observation_one_of_wsl(tmp_path):
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


def test_line_ends_of_windows_a_byte_order_mark_and_empty_lines_do_no_harm(tmp_path):
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


def test_of_a_recording_that_a_crash_cut_off_all_that_is_there_is_read_and_the_cut_is_named(tmp_path, traces):
    for name in ("t.jsonl", "t.jsonl.gz"):
        path = tmp_path / name
        seen = list(read_trace(traces[0]))
        write_trace(path, seen, interval_seconds=0.5)
        before, (where,) = cut(path, 0.6)
        assert before == seen[: len(before)]
        assert len(before) > 0.4 * len(seen)
        assert where.line == len(before) + 2
        assert "truncated" in str(where.problem)


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
def test_any_value_in_any_place_is_taken_or_refused_with_its_name(row):
    try:
        observation = observation_from_row({"t": 1.0} | row)
    except ValueError as error:
        assert "must be" in str(error)
    else:
        assert row_from_observation(dataclasses.replace(observation, t=2.0))["t"] == 2.0
