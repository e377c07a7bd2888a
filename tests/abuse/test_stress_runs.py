"""A stress worker's output, and stored results of stress runs, may be anything at all.

The worker runs in a Python that a user may have made; the state folder belongs to the service's account, and root reads
and writes there when it does a run.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.stress.support import gpu, night
from tests.support.accounts import ALICE, needs_root
from wslgpud.cli import app
from wslgpud.config import Config, StoreSettings
from wslgpud.host import Host
from wslgpud.security.run_as import Command
from wslgpud.security.shapes import LINES, MalformedError, check_line
from wslgpud.sources.procfs import OwnedFiles
from wslgpud.store import Store
from wslgpud.store.records import stress_from_json, stress_to_json
from wslgpud.stress import conditions, parent
from wslgpud.stress.conditions import note_hung, still_hung
from wslgpud.stress.parent import supervise
from wslgpud.stress.result import Frame, WorkerOutput, digest
from wslgpud.stress.separate import keep
from wslgpud.stress.stress_metrics import readings
from wslgpud.stress.stress_run import WorkerPace

DEEP = "[" * 100_000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
NUMBERS = st.integers(0, 1 << 61) | st.floats(allow_nan=True, allow_infinity=True) | st.integers(-5, 5)
TEXTS = st.sampled_from(["ok", "", "left", "done", "soak", "fill", "address"])
HEX = st.sampled_from(["0", "ffffffffffffffff", "5a"])
PLACES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).map(list), max_size=3)
COUNTS = st.dictionaries(st.integers(0, 64).map(str), st.integers(0, 99), max_size=4)
SAMPLES = st.lists(
    st.fixed_dictionaries(
        {"word": st.integers(0, 99), "expected": HEX, "got": HEX, "again": HEX, "stuck": HEX},
        optional={"belongs": st.none() | st.just([1, 2])},
    ),
    max_size=5,
)
FIELDS: Mapping[str, st.SearchStrategy[Any]] = {
    "samples": SAMPLES,
    "bits": COUNTS,
    "flips": COUNTS,
    "belongs": PLACES,
    "sweep": st.integers(1, 2),
    "chunk": st.integers(0, 9),
    "index": st.integers(0, 9),
    "checks": st.integers(0, 3),
    **dict.fromkeys(("outcome", "why", "phase", "name", "torch", "cuda", "refused", "pattern"), TEXTS),
    **dict.fromkeys(
        (
            "free",
            "total",
            "bus_bits",
            "memory_kilohertz",
            "traversed",
            "verified",
            "seconds",
            "target",
            "actual",
            "allocate_seconds",
            "write_seconds",
            "free_less",
            "bytes",
            "planned",
            "write",
            "change",
            "read",
            "bad_words",
            "words",
            "still_taken",
        ),
        NUMBERS,
    ),
}
HEARD = st.builds(
    lambda event, facts, odd: {"event": event, **facts, **odd},
    st.sampled_from(sorted(LINES)),
    st.fixed_dictionaries(dict(FIELDS)),
    st.dictionaries(st.sampled_from(sorted(FIELDS)), JSON, max_size=1),
)


def accepted(line: Mapping[str, Any]) -> bool:
    try:
        check_line(line)
    except MalformedError:
        return False
    return True


TOO_MUCH, NO_LINE = "far too much", "outside its protocol"
#: how a worker floods its parent, and how that ends
FLOODS = {
    "nested lists": ("""while True: out.write(b'{"event": "x", "a": [' + b'[],' * 20000 + b'[]]}\\n')""", TOO_MUCH),
    "lines": ("""while True: out.write(b'{"event": "chunk", "index": 1, "free_less": 0}\\n')""", TOO_MUCH),
    "beats": ("""while True: out.write(b'{"event": "beat"}\\n' * 1000)""", TOO_MUCH),
    "one line": ("while True: out.write(b'x' * 65536)", TOO_MUCH),
    "deep": (f"out.write(b'[' * {len(DEEP)} + b'\\n'); time.sleep(600)", NO_LINE),
    "no figure": ("""out.write(b'{"event": "filled", "bytes": "x"}\\n'); time.sleep(600)""", NO_LINE),
    "no event": ("""out.write(b'{"event": ["beat"]}\\n'); time.sleep(600)""", NO_LINE),
    "digits": ("""out.write(b'{"event": "beat", "verified": 1' + b'9' * 99 + b'}\\n'); time.sleep(600)""", NO_LINE),
    "complaints": ("while True: sys.stderr.write('x' * 65536)", "not done within"),
}


class TestWhatAWorkerSays:
    @settings(max_examples=40)
    @given(st.lists(HEARD, max_size=12))
    def test_lines_that_pass_the_check_give_a_result_fit_to_keep(self, lines) -> None:
        """Every line is validated once, so that later code can trust it."""
        heard = [line for line in json.loads(json.dumps(lines)) if accepted(line)]
        pace = WorkerPace(1.0, 0.0)
        for number, line in enumerate(heard):
            pace.observe(line, float(number))

        result = digest(WorkerOutput(heard), Frame(1.8e9, gpu(), {}))

        kept = stress_from_json(json.loads(json.dumps(stress_to_json(result))))
        assert kept.verdict == result.verdict
        list(readings([kept]))

    @given(HEARD)
    def test_an_honest_line_passes(self, line) -> None:
        honest = dict.fromkeys(FIELDS, 7) | {
            "samples": [],
            "bits": {},
            "flips": {},
            "belongs": [],
            **dict.fromkeys(
                FIELDS.keys() & {"outcome", "why", "phase", "name", "torch", "cuda", "refused", "pattern"}, "ok"
            ),
        }
        assert accepted({"event": line["event"], **honest})

    @pytest.mark.parametrize(("script", "said"), FLOODS.values(), ids=FLOODS)
    def test_a_flood_is_ended_and_costs_little_memory(self, script: str, said: str) -> None:
        """Measured as the peak of a separate process: for some of these it was 632 MB."""
        program = f"import sys, time; out = open(1, 'wb', buffering=0)\n{script}"
        body = (
            "import json, resource, sys\nfrom wslgpud.stress import parent\nparent.OWN_SECONDS = 0.3\n"
            "from wslgpud.security.run_as import Command\n"
            "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            f"done = parent.supervise(Command([sys.executable, '-c', {program!r}], {{}}), dict,"
            f" deadline_seconds={2.0 if said.startswith('not done') else 300.0})\n"
            "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "print(json.dumps([str(done.failure), after - before, done.hung_pid]))"
        )
        told = {**os.environ, "PYTHONPATH": str(Path(parent.__file__).parents[2])}
        done = subprocess.run([sys.executable, "-c", body], env=told, capture_output=True, text=True, check=True)
        failure, grown_kib, hung = json.loads(done.stdout)

        assert said in failure
        assert hung is None
        assert grown_kib < 150 << 10

    @pytest.mark.parametrize("left", ["", "os.setsid(); "], ids=["in its group", "in a session of its own"])
    def test_a_worker_leaving_processes_behind_does_not_fail_its_run(self, left: str) -> None:
        """Until it had been silent for too long, though the worker had come to its end."""
        script = (
            'import os, sys, time\nsys.stdin.readline()\nprint(\'{"event": "begin"}\', flush=True)\n'
            f"if os.fork() == 0:\n    {left}time.sleep(60)\n    os._exit(0)\n"
            'print(\'{"event": "end", "outcome": "done"}\', flush=True)\nos._exit(0)'
        )
        done = supervise(Command([sys.executable, "-c", script], {}), dict, deadline_seconds=300.0)

        assert done.failure == ""
        assert [line["event"] for line in done.lines] == ["begin", "end"]

    def test_beats_that_come_too_fast_are_not_passed_on(self) -> None:
        heard: list[Any] = []
        script = 'print(\'{"event": "beat", "phase": "x"}\\n\' * 1500 + \'{"event": "end", "outcome": "done"}\')'
        done = supervise(
            Command([sys.executable, "-c", script], {}), dict, deadline_seconds=300.0, progress=heard.append
        )

        assert done.failure == ""
        assert len(heard) < 500


def damaged(document: dict[str, Any], **changes: Any) -> str:
    return json.dumps(document | changes)


DAMAGES = {
    "no JSON": "{",
    "deep": DEEP,
    "a list": "[]",
    "verdict": damaged(stress_to_json(night(1)), verdict="splendid"),
    "time": damaged(stress_to_json(night(1)), wall=1e300),
    "figure": damaged(stress_to_json(night(1)), values={"usable_bytes": "many"}),
    "not a number": damaged(stress_to_json(night(1)), values={"usable_bytes": float("nan")}),
    "finding": damaged(stress_to_json(night(1)), findings=[{"kind": "errors"}]),
    "key": damaged(stress_to_json(night(1)), key={"driver": [1]}),
    "ladder": damaged(stress_to_json(night(1)), detail={"ladder": [{}]}),
    "chunks": damaged(stress_to_json(night(1)), detail={"chunks": [{"bytes": 1, "read": 0}]}),
    "errors": damaged(stress_to_json(night(1)), detail={"errors": [{"words": "x"}]}),
    "phases": damaged(stress_to_json(night(1)), detail={"phases": {"fill": "long"}}),
}


class TestWhatIsStored:
    @pytest.fixture
    def ask(self, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
        with Store(tmp_path / "wslgpud.db", StoreSettings()) as store:
            for number in (1, 2, 3):
                store.record_stress(night(number))
        with closing(sqlite3.connect(tmp_path / "wslgpud.db")) as database, database:
            ids = [number for (number,) in database.execute("select id from stress_run order by ms")]
            database.execute("update stress_run set document = ? where id = ?", (DAMAGES[request.param], ids[1]))
        return ids, lambda *words: CliRunner().invoke(app, ["stress", *words, "--state", str(tmp_path)])

    @pytest.mark.parametrize("ask", DAMAGES, indirect=True)
    def test_a_damaged_run_is_left_out_with_a_line_that_names_it(self, ask: Any, caplog: Any) -> None:
        ids, do = ask
        with caplog.at_level(logging.WARNING):
            history = do("history", "--json")
        (line,) = [record.getMessage() for record in caplog.records]

        assert [run["id"] for run in json.loads(history.stdout)] == [ids[0], ids[2]]
        assert line.startswith(f"stress run {ids[1]}: damaged: ")
        for words in (("history",), ("show", str(ids[0])), ("compare",)):
            assert do(*words).exit_code == 0, words
        assert do("show", str(ids[1])).exit_code == 2

    @given(st.sampled_from(sorted(FIELDS)), JSON)
    @example("chunks", [{}])
    def test_no_detail_that_passes_the_check_breaks_the_screen(self, name: str, value: Any) -> None:
        from wslgpud.cli.stress import print_history, print_run

        for detail in ({"ladder": [{name: value}]}, {"chunks": [{name: value}]}, {"patterns": [{name: value}]}):
            try:
                run = stress_from_json(stress_to_json(night(1)) | {"detail": detail})
            except MalformedError:
                continue
            print_run(run, rows=True)
            print_history([(1, run)])


@pytest.fixture(params=["link", "pipe", "endless"])
def planted(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Replace a file by something else; return the target of a link there."""
    target = tmp_path / "target"
    target.write_text('{"gpu": 0, "mode": "quick", "boot": "x", "pid": 1}')

    def plant(file: Path) -> Path:
        if request.param == "link":
            file.symlink_to(target)
        elif request.param == "pipe":
            os.mkfifo(file)
        else:
            with file.open("wb") as big:
                big.truncate(1 << 40)
        return target

    return plant


class TestTheFolderOfTheServicesAccount:
    def test_a_hung_worker_note_is_kept_only_in_a_plain_file(self, tmp_path: Path, planted: Any) -> None:
        target = planted(tmp_path / "stress-hung.json")
        before = target.read_text()

        assert not still_hung(tmp_path, Host())
        note_hung(tmp_path, Host(), os.getpid())
        assert still_hung(tmp_path, Host())
        assert target.read_text() == before

    @needs_root
    def test_root_writes_the_services_database_as_the_service(self, public: Path) -> None:
        folder = public / "state"
        folder.mkdir()
        (folder / "wslgpud.db").symlink_to(public / "victim")
        os.chown(folder, ALICE, ALICE)

        def saved(database: Path) -> bool:
            """Return whether a run was kept, by a process of its own: it lets go of root's rights."""
            child = os.fork()
            if child == 0:
                os._exit(0 if keep(night(1), Config(), folder, str(database)) == "" else 1)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

        assert not saved(folder / "wslgpud.db")
        assert not (public / "victim").exists()
        assert saved(folder / "own.db")
        assert {path.stat().st_uid for path in folder.glob("own.db*")} == {ALICE}


class Counted(Host):
    """A machine that counts the links that are looked at."""

    looks = 0

    def link(self, path: str) -> str | None:
        self.looks += 1
        return super().link(path)


def process_of(host: Host, pid: int, uid: int, files: int) -> None:
    """Make a process that has a GPU open, last of so many files."""
    folder = Path(host.path(f"/proc/{pid}"))
    (folder / "fd").mkdir(parents=True)
    for number in range(files):
        (folder / "fd" / str(number)).symlink_to("/dev/null" if number else conditions.CUDA_DEVICE)
    (folder / "stat").write_text(f"{pid} (python3) S 1 {pid} {pid} 0 -1" + " 0" * 40)
    (folder / "status").write_text(f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGroups:\t\n")
    (folder / "cmdline").write_text("")


def test_one_users_millions_of_open_files_hide_no_other_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times per second a run checks for others that want the card; two million took it 15 s each time."""
    monkeypatch.setattr(conditions, "MAX_FILES_A_USER", 1000)
    monkeypatch.setattr(conditions, "MAX_FILES", 300)
    host = Counted(tmp_path)
    for pid in range(100, 120):
        process_of(host, pid, uid=12345, files=500)
    process_of(host, 99, uid=12346, files=200)
    process_of(host, 121, uid=12346, files=200)

    found = conditions.users(OwnedFiles(host), own_pid=2)

    assert {"python3 (pid 99)", "python3 (pid 121)"} <= {*found}
    assert host.looks <= 1000 + 300 + 20 * conditions.MANY_FILES + 2 * 200
