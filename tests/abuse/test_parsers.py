"""Every reader of what others write: it tells, or refuses in its own words; nothing else happens.

``ELSEWHERE`` names the tests of the readers that have theirs beside them; here are all others.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from wslgpud.advise.doctor import checking
from wslgpud.advise.doctor.checks_wsl import version
from wslgpud.advise.fit import source
from wslgpud.advise.guard import past_runs
from wslgpud.advise.wslconfig import files
from wslgpud.advise.wslconfig.check import remarks
from wslgpud.alerts import dispatcher
from wslgpud.alerts.manager import FILE as CONTROL
from wslgpud.alerts.manager import ControlFile
from wslgpud.app.process import NoRecording, host_at
from wslgpud.brake import FILE as HELD
from wslgpud.brake.watchdog import HeldJobsFile
from wslgpud.config import Alerts, ConfigError
from wslgpud.host import Host
from wslgpud.probes import wsl_config
from wslgpud.serve import otlp
from wslgpud.sources import decimal, disk, parse_uint, procfs, table
from wslgpud.store import engines
from wslgpud.store.errors import UnwritableError
from wslgpud.store.records import SeriesRef, matcher, stress_from_json, stress_to_json
from wslgpud.stress.conditions import still_hung
from wslgpud.stress.schedule import crontab, next_time
from wslgpud.words import moments
from wslgpud.words.units import printable

#: Reader -> where hypothesis is let loose on it.
ELSEWHERE = {
    "configuration": "tests/test_config.py",
    ".wslconfig": "tests/advise/wslconfig/test_parse.py",
    "meminfo, vmstat, PSI, stat, disks, network, kernel log, cgroups": "tests/sources/test_parsers.py",
    "trace": "tests/risk/test_trace.py",
    "web configuration": "tests/serve/test_webconfig.py",
    "Authorization": "tests/serve/test_auth.py",
    "Host": "tests/serve/test_hosts.py",
    "HTTP": "tests/serve/test_limits.py",
    "queries of the API": "tests/page/test_api.py",
    "NVML's recordings": "tests/gpu/test_recordings.py",
    "pages of model servers": "tests/sources/test_model_servers.py",
    "Windows' lines and windows_exporter": "tests/probes/test_windows.py",
    "blocks of the database": "tests/store/test_codec.py",
    "the stress worker's lines": "tests/stress/test_verdict.py",
    "models' config.json": "tests/advise/fit/test_shape.py",
}
REPOSITORY = Path(__file__).parents[2]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
#: A stress run needs these, and may have more.
WHOLE = {
    "wall": st.just(1.8e9) | JSON,
    "uuid": st.just("GPU-1") | JSON,
    "gpu": st.just(0) | JSON,
    "name": st.just("a card") | JSON,
    "verdict": st.just("passed") | JSON,
}
DEEP = "[" * 100_000
LINES = st.text(st.characters(codec="utf-8"), max_size=200)
# Found values count, not how fast a busy machine finds them.
relaxed = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


def documents(*names: str) -> st.SearchStrategy[str]:
    """Texts of files that should hold an object with these keys."""
    shaped = st.fixed_dictionaries({}, optional=dict.fromkeys(names, JSON))
    return shaped.map(json.dumps) | JSON.map(json.dumps) | LINES


@pytest.mark.parametrize("file", ELSEWHERE.values(), ids=ELSEWHERE)
def test_the_others_are_fuzzed_where_they_are_tested(file: str) -> None:
    assert "@given" in (REPOSITORY / file).read_text()


class TestFilesOfOurOwnFolderThatAnybodyMayHaveSpoiled:
    """They never cost a warning, a command, or the start."""

    @relaxed
    @given(documents("silences", "acknowledged"))
    @example(DEEP)
    @example('{"silences": [], "acknowledged": [1e999]}')
    def test_silences(self, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / CONTROL).write_text(text)
            found = ControlFile(Path(folder)).now

        assert all(isinstance(number, int) for number in found.acknowledged)

    @relaxed
    @given(documents("boot_id", "last", "held"))
    @example(DEEP)
    def test_what_is_paused(self, text: str) -> None:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        with tempfile.TemporaryDirectory() as folder:
            for content in (text, text.replace('"boot_id": ', f'"boot_id": "{boot}", "x": ')):
                (Path(folder) / HELD).write_text(content)
                last, held = HeldJobsFile(Path(folder)).read()
                assert isinstance(last, int)
                for grip in held.values():
                    assert all(isinstance(number, int) for one in grip for number in one)

    @relaxed
    @given(documents("boot", "pid"))
    @example(DEEP)
    def test_the_note_of_a_hung_stress_run(self, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "stress-hung.json").write_text(text)

            assert still_hung(Path(folder), Host()) is False

    @relaxed
    @given(st.fixed_dictionaries(WHOLE, optional=dict.fromkeys(("values", "findings", "key", "detail"), JSON)))
    def test_a_stress_run_for_the_daemon_is_whole_or_refused(self, document: Any) -> None:
        try:
            found = stress_from_json(document)
        except (ValueError, KeyError, TypeError):
            return
        assert math.isfinite(found.wall)
        json.dumps(stress_to_json(found))

    @relaxed
    @given(documents("commands", "compilers"))
    @example(DEEP)
    @example('{"commands": {}, "compilers": {"nvcc": 1e999}}')
    def test_what_the_guard_remembers(self, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / past_runs.NAME).write_text(text)

            assert all(isinstance(size, int) for size in past_runs.load(Path(folder)).compilers.values())

    @relaxed
    @given(documents("wall", "mono", "links", "disks", "commands"))
    @example(DEEP)
    def test_a_recorded_machine(self, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "host.json").write_text(text)
            try:
                host_at(Path(folder))
            except NoRecording as refusal:
                assert folder in str(refusal)


class TestTextsOfTheSystem:
    @relaxed
    @given(st.text() | LINES.map(lambda text: f"/dev/sda {text} ext4 rw,x 0 0"))
    @example("a \\777\\400\\1 b c")
    def test_mounts(self, text: str) -> None:
        found = disk.mounts(text)

        for mount in found:
            assert isinstance(mount.windows, bool)
        disk.holder(found, "/home/user")

    @relaxed
    @given(st.text() | LINES.map(lambda text: f"/dev/sda /{text} ext4 rw 0 0"))
    @example("x \\777 ext4 rw 0 0")
    def test_mounts_of_the_state_folder(self, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            try:
                engines.check_state_folder(Path(folder), text)
            except UnwritableError as refusal:
                assert folder in str(refusal)

    @relaxed
    @given(st.text() | LINES.map(lambda text: f"0::{text}\n4:memory,cpu:{text}"))
    def test_groups_of_a_process(self, text: str) -> None:
        assert isinstance(procfs.memory_cgroup(text), str)

    @relaxed
    @given(st.text())
    def test_words_and_numbers(self, text: str) -> None:
        for value in table(text).values():
            number, fraction = parse_uint(value), decimal(value)
            assert number is None or 0 <= number < 10**18
            assert fraction is None or (math.isfinite(fraction) and fraction >= 0)

    @relaxed
    @given(st.text())
    def test_names_are_made_fit_for_a_terminal(self, text: str) -> None:
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", printable(text))

    @relaxed
    @given(st.text())
    def test_versions(self, text: str) -> None:
        assert all(number >= 0 for number in version(text))

    @relaxed
    @given(documents("version", "cuda", "architectures", "capabilities", "kernel", "ran", "tf32", "cudnn", "pinned"))
    @example(DEEP)
    def test_what_a_python_says_of_its_torch(self, text: str) -> None:
        checking._facts("python", text, "", 1)

    @relaxed
    @given(st.binary() | LINES.map(lambda text: b"\xff\xfe" + text.encode("utf-16-le")) | LINES.map(str.encode))
    def test_bytes_of_a_wslconfig_come_back_as_they_were(self, data: bytes) -> None:
        with suppress(OSError):  # broken UTF-16, which is not changed
            assert files.decoded(data).data == data


class TestWhatPeopleType:
    @relaxed
    @given(LINES.map(lambda text: f"[wsl2]\nmemory={text}\nswap={text}\nprocessors={text}\n{text}=1\n"))
    def test_remarks_on_a_wslconfig(self, text: str) -> None:
        for remark in remarks(wsl_config.parse(text), 64 << 30):
            assert remark

    @relaxed
    @given(LINES | st.from_regex(r"\d+(\.\d+)?(s|min|m|h|d|w)"))
    @example("9" * 400 + "d")
    @example("0001-01-01")
    @example("9999-12-31T23:59:59+23:59")
    def test_moments(self, text: str) -> None:
        for read in (lambda: moments.moment(text, 1.8e9), lambda: moments.seconds(text)):
            try:
                assert math.isfinite(read())
            except moments.MomentError:
                continue

    @relaxed
    @given(LINES | st.from_regex(r"[*?\[\]a-z_]+\{[a-z]+=\"[^\"]*\"\}"))
    def test_names_of_series(self, text: str) -> None:
        assert matcher(text)(SeriesRef("gpu_power_watts", (("gpu", "0"),), "pc")) in {True, False}

    @relaxed
    @given(LINES)
    def test_levels_of_channels_and_headers(self, text: str) -> None:
        for read in (lambda: dispatcher.lowest_levels(Alerts(channel_levels=(text,))), lambda: otlp._header(text)):
            try:
                read()
            except ConfigError as refusal:
                assert len(str(refusal).splitlines()) == 1

    @relaxed
    @given(LINES | st.from_regex(r"[\d*/,\-]+( [\d*/,\-]+){4}", fullmatch=True))
    @example("0 0 31 2 *")
    def test_times_of_the_stress_run(self, text: str) -> None:
        try:
            assert next_time(crontab(text), 1.8e9) > 1.8e9
        except ConfigError as refusal:
            assert "stress.schedule" in str(refusal)


@relaxed
@given(st.binary() | documents("model_type", "hidden_size", "text_config", "quantization_config", "layer_types"))
@example(DEEP.encode())
def test_configurations_of_models(data: bytes | str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_bytes(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
        try:
            source.source_of(str(file)).stored  # noqa: B018 - raises where it is not known
        except source.ShapeError as refusal:
            assert str(refusal)
