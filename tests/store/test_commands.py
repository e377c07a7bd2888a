"""``wslgpud history``, ``export``, ``db``: the recorded data can be read while a daemon writes."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.daemons import eventually
from tests.support.servers import program, prometheus
from wslgpud.app.catalogue import catalogue
from wslgpud.cli import app
from wslgpud.cli.chart import chart
from wslgpud.config import StoreSettings
from wslgpud.series.curves import WORDS, Curve
from wslgpud.store import SeriesRef, Store, maintenance, upkeep
from wslgpud.words.units import amount, size

START, END = "2025-06-15 00:00+00:00", "2025-06-15 01:00+00:00"
SECONDS = 1200
METRICS = catalogue()
RAM, VRAM = METRICS["memory_available_bytes"], METRICS["gpu_memory_used_bytes"]
SWAPPED, POWER = METRICS["swap_in_bytes"], METRICS["gpu_power_watts"]
CARDS = (("0", "GPU-a"), ("1", "GPU-b"))


@pytest.fixture(scope="module")
def recorded(made, tmp_path_factory):
    """Twenty minutes of a machine with two cards, and the daemon still writing."""
    folder = tmp_path_factory.mktemp("state")
    clock = made.FakeClock(made.T0)
    settings = StoreSettings(commit_seconds=300, raw_days=3650)
    with Store(folder / "wslgpud.db", settings, host_name="pc", clock=clock) as store:
        for second in range(SECONDS):
            clock.now = made.T0 + second
            values = {RAM: 2**34 - second * 4096, SWAPPED: second * 8192}
            snapshot = made.snapshot(clock.now, values)
            (first, other) = snapshot.reports
            cards = [
                made.Reading(spec, value, card)
                for i, card in enumerate(CARDS)
                for spec, value in ((VRAM, (i + 1) << 30), (POWER, 100.5 + i))
            ]
            sample = made.Sample((*first.sample.readings, *cards))
            report = made.SourceReport("made", "ok", sample, clock.now, 0.001)
            store.append(made.Snapshot(clock.now, clock.now, 1, (report, other)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)
            store._writer.upkeep._due_mono = 0.0
            made.settle(store, clock)
        yield folder


@pytest.fixture
def run(recorded):
    def command(*arguments, code=0):
        done = CliRunner().invoke(app, [*arguments, "--state", str(recorded)], env={"COLUMNS": "100"})
        assert done.exit_code == code, done.output
        return done.stdout if code == 0 else done.output

    return command


def history(run, *arguments):
    return run("history", *arguments, "--since", START, "--until", END)


def test_history_alone_lists_series_with_units_and_last_values(run):
    said = run("history")

    assert "6 series" in said
    rows = {row["series"]: row for row in json.loads(run("history", "--json"))}
    assert rows["memory_available_bytes"]["value"] == 2**34 - (SECONDS - 1) * 4096
    assert rows["memory_available_bytes"]["unit"] == "bytes"
    assert rows["swap_in_bytes"]["kind"] == "counter"
    assert datetime.fromisoformat(rows["swap_in_bytes"]["at"]).timestamp() % 86400 == SECONDS - 1


@pytest.mark.parametrize(
    "name",
    ["vram", "gpu_memory_used_bytes", "wslgpud_gpu_memory_used_bytes", "gpu_memory_*", "vram{gpu=*}", "*{uuid=GPU-?}"],
)
def test_a_series_has_a_short_name_a_metric_s_name_and_patterns(run, name):
    found = json.loads(history(run, name, "--step", "1h", "--json"))["series"]

    assert {s["labels"]["gpu"] for s in found} == {"0", "1"}
    assert found[0]["points"][0][0] % 3600 == 0


def test_one_card_is_chosen_by_its_label(run):
    (found,) = json.loads(history(run, "vram{gpu=1}", "--json"))["series"]

    assert found["labels"]["uuid"] == "GPU-b"
    assert [v for _, v in found["points"]] == [2 << 30] * SECONDS


def test_every_short_name_stands_for_metrics_that_are_stored():
    assert [m for metrics in WORDS.values() for m in metrics if not METRICS[m].stored] == []


def test_the_terminal_shows_a_picture_with_its_extremes(run):
    said = history(run, "ram", "vram")

    assert any(0x2800 < ord(character) < 0x2900 for character in said)
    assert "memory_available_bytes" in said
    (line,) = [line for line in said.splitlines() if 'gpu_memory_used_bytes{gpu="1"}' in line]
    assert line.split()[-8:] == ["2.0", "GiB"] * 4


@pytest.mark.parametrize("arguments", [["ram", "--plot"], ["--plot", "ram"]])
def test_plot_without_a_file_means_the_terminal(run, arguments):
    assert history(run, *arguments) == history(run, "ram")


def test_a_counter_is_drawn_as_its_rate(run):
    said = history(run, "swap_in_bytes")

    assert "8 KiB/s" in said


@pytest.mark.parametrize(("how", "expected"), [("sum", 3 << 30), ("max", 2 << 30), ("mean", 1.5 * 2**30)])
def test_several_cards_become_one(run, how, expected):
    (found,) = json.loads(history(run, "vram", "--across", how, "--step", "5min", "--json"))["series"]

    assert [v for _, v in found["points"]] == [expected] * 4


def test_csv_has_a_line_a_moment_and_a_column_a_series(run):
    rows = list(csv.reader(io.StringIO(history(run, "ram", "power", "--csv"))))

    assert rows[0] == [
        "time",
        "memory_available_bytes",
        'gpu_power_watts{gpu="0",uuid="GPU-a"}',
        'gpu_power_watts{gpu="1",uuid="GPU-b"}',
    ]
    assert len(rows) == SECONDS + 1
    assert rows[2] == ["2025-06-15T00:00:01.000Z", str(2**34 - 4096), "100.5", "101.5"]


@pytest.mark.slow
def test_parquet_holds_every_sample(run, tmp_path):
    files = pytest.importorskip("pyarrow.parquet")
    history(run, "ram", "power", "--parquet", str(tmp_path / "a.parquet"))
    run("export", str(tmp_path / "b.parquet"), "ram", "power")

    tables = [files.read_table(tmp_path / name).to_pylist() for name in ("a.parquet", "b.parquet")]
    assert tables[0] == tables[1]
    assert len(tables[0]) == 3 * SECONDS
    assert {(r["metric"], r["labels"], r["unit"]) for r in tables[0]} == {
        ("wslgpud_memory_available_bytes", "{}", "bytes"),
        ("wslgpud_gpu_power_watts", '{"gpu": "0", "uuid": "GPU-a"}', "watts"),
        ("wslgpud_gpu_power_watts", '{"gpu": "1", "uuid": "GPU-b"}', "watts"),
    }
    assert tables[0][1]["value"] == 2**34 - 4096
    assert tables[0][1]["time"].timestamp() % 86400 == 1


def test_a_picture_goes_into_a_file(run, tmp_path):
    pytest.importorskip("matplotlib")
    history(run, "ram", "power", "--plot", str(tmp_path / "h.png"))

    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["history", "vrma"], "did you mean vram"),
        (["history", "wslgpud_gpu_memory_used"], "did you mean gpu_memory_used_bytes"),
        (["history", "fan"], "no series 'fan'"),
        (["history", "temperature"], "nothing is recorded here of temperature"),
        (["history", "ram", "--since", "gestern"], "is not a time"),
        (["history", "ram", "--step", "0s"], "is not a duration"),
        (["history", "ram", "--csv", "--json"], "exclude each other"),
        (["history", "--csv"], "need a series"),
        (["history", "--plot", "h.png"], "need a series"),
        (["incidents", "--plot", "i.png"], "name its number"),
        (["history", "vram", "--across", "sum", "--csv"], "need --step"),
        (["history", "ram", "--since", "1h", "--until", "2h"], "is not before"),
        (["history", "ram", "--host", "laptop"], "no history of a machine called laptop"),
        (["export", "file.xyz"], "name it .om (OpenMetrics), .csv or .parquet"),
        (["export", "file.txt"], "name it .om (OpenMetrics), .csv or .parquet"),
        (["export", "-", "--format", "parquet"], "Parquet needs a file"),
        (["export", "file.om", "--label", "job"], "is not a label"),
        (["db", "compact"], "the daemon writes into it; stop it first (sudo systemctl stop wslgpud)"),
    ],
)
def test_a_mistake_is_told_in_one_line(run, arguments, reason):
    said = run(*arguments, code=2)

    assert reason in said
    assert said.splitlines()[-1].startswith("wslgpud: ")


@pytest.mark.servers
def test_prometheus_itself_takes_the_history_over(run, tmp_path):
    promtool = program("prometheus", "promtool")
    run("export", str(tmp_path / "h.om"), "--label", "job=wslgpud")
    made = subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", tmp_path / "h.om", tmp_path / "tsdb"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    with prometheus(tmp_path, "global: {}", "--storage.tsdb.retention.time=100y") as server:
        at = "2025-06-15T00:19:59Z"

        def ask(query):
            result = server.ask("query", query=query, time=at)["result"]
            return {r["metric"].get("gpu", ""): float(r["value"][1]) for r in result}

        eventually(lambda: ask("wslgpud_memory_available_bytes"), "the first answer")
        assert ask("wslgpud_memory_available_bytes") == {"": 2**34 - (SECONDS - 1) * 4096}
        assert ask('wslgpud_gpu_power_watts{job="wslgpud"}') == {"0": 100.5, "1": 101.5}
        assert ask("rate(wslgpud_swap_in_bytes_total[10m])") == {"": pytest.approx(8192, rel=0.01)}
        assert ask("count_over_time(wslgpud_gpu_memory_used_bytes[1h])") == {"0": SECONDS, "1": SECONDS}


@pytest.mark.slow
def test_an_exported_csv_holds_every_value_once(run, tmp_path):
    run("export", str(tmp_path / "h.csv"))
    with (tmp_path / "h.csv").open() as file:
        rows = list(csv.DictReader(file))

    assert len(rows) == 6 * SECONDS
    assert len({(r["time"], r["metric"], r["labels"]) for r in rows}) == len(rows)
    assert {r["host"] for r in rows} == {"pc"}
    power = [r for r in rows if r["metric"] == "wslgpud_gpu_power_watts" and '"GPU-b"' in r["labels"]]
    assert {r["value"] for r in power} == {"101.5"}


def test_an_export_that_fails_leaves_no_half_file(run, tmp_path):
    run("export", str(tmp_path / "h.om"), "nonsense", code=2)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "h.om").write_text("mine")
    assert "exists already" in run("export", str(tmp_path / "h.om"), code=2)
    assert (tmp_path / "h.om").read_text() == "mine"


def test_an_export_in_steps_goes_to_standard_output(run):
    lines = run("export", "-", "ram", "--format", "openmetrics", "--step", "10min").splitlines()

    assert lines[-1] == "# EOF"
    assert [float(line.split()[2]) % 86400 for line in lines if not line.startswith("#")] == [0, 600]


def test_db_info_says_what_takes_the_room(run):
    found = json.loads(run("db", "info", "--json"))

    assert found["samples"] == 6 * 900, "those that are sealed"
    assert found["series"] == 6
    assert datetime.fromisoformat(found["samples_since"]).timestamp() % 86400 == 0
    assert datetime.fromisoformat(found["newest"]).timestamp() % 86400 >= SECONDS - 60
    assert found["tiers_bytes"].keys() == {"sealed", "newest", "minutes", "hours", "events", "rest"}
    assert 0 < sum(found["tiers_bytes"].values()) <= sum(found["size_bytes"].values())
    assert "kept for 30 days" in run("db", "info")


def test_db_check_finds_nothing_in_a_sound_history(run):
    assert "nothing wrong" in run("db", "check")


@pytest.mark.parametrize(
    ("harm", "finding"),
    [
        ("UPDATE chunk SET data = x'0101' WHERE id = (SELECT max(id) FROM chunk)", "damaged"),
        ("DELETE FROM rollup_minute", "do not match their samples"),
        ("UPDATE rollup_minute SET n_0 = 59", "do not match their samples"),
        ("UPDATE rollup_minute SET below_0 = -1", "do not match their samples"),
        ("UPDATE rollup_minute SET above_0 = -1", "do not match their samples"),
    ],
)
def test_db_check_finds_what_is_wrong(recorded, tmp_path, harm, finding):
    with closing(sqlite3.connect(recorded / "wslgpud.db")) as database:
        database.execute("VACUUM INTO ?", (str(tmp_path / "wslgpud.db"),))
    with closing(sqlite3.connect(tmp_path / "wslgpud.db")) as database, database:
        database.execute(harm)
    done = CliRunner().invoke(app, ["db", "check", "--state", str(tmp_path), "--json"])

    assert done.exit_code == 1
    assert any(finding in said for said in json.loads(done.stdout)["findings"]), done.stdout


def test_compacting_a_file_that_is_no_database_says_what_to_do(tmp_path):
    (tmp_path / "wslgpud.db").write_text("a letter, and a long one: " * 99)
    done = CliRunner().invoke(app, ["db", "compact", "--dry-run", "--state", str(tmp_path)])

    assert done.exit_code == 2
    assert done.stderr.endswith("is not a database; move the file away or name another one\n")


def test_a_backup_beside_the_daemon_is_a_whole_history(run, tmp_path):
    run("db", "backup", str(tmp_path / "wslgpud.db"))

    copy = CliRunner().invoke(app, ["db", "check", "--state", str(tmp_path)])
    assert copy.exit_code == 0, copy.output
    done = CliRunner().invoke(app, ["db", "info", "--state", str(tmp_path), "--json"])
    assert json.loads(done.stdout)["samples"] == 6 * 900
    assert "exists already" in run("db", "backup", str(tmp_path / "wslgpud.db"), code=2)
    run("db", "backup", str(tmp_path / "wslgpud.db"), "--force")
    assert "cannot be made" in run("db", "backup", "/dev/null/x", code=2)
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".part"] == []


def test_a_backup_is_open_to_nobody_to_whom_the_history_is_not(recorded, tmp_path):
    """Root's own mask would show the names of everybody's programs to all."""
    file = tmp_path / "wslgpud.db"
    shutil.copy(recorded / "wslgpud.db", file)
    file.chmod(0o640)
    before = os.umask(0o022)
    try:
        maintenance.backup(str(file), tmp_path / "copy.db", lambda *_: None)
    finally:
        os.umask(before)

    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to write into another user's folder")
def test_root_copies_into_a_users_folder_with_the_users_rights(recorded):
    seen = []
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        theirs = Path(name)
        os.chown(theirs, 51234, 51234)
        (theirs / "copy.db.part").symlink_to("/etc/wslgpud-planted")

        maintenance.backup(str(recorded / "wslgpud.db"), theirs / "copy.db", lambda *_: seen.append(os.geteuid()))

        assert set(seen) == {51234}
        assert (theirs / "copy.db").stat().st_uid == 51234
    assert not Path("/etc/wslgpud-planted").exists()
    assert os.geteuid() == 0


def test_a_backup_is_of_one_moment_despite_writes_meanwhile(run, recorded, tmp_path, monkeypatch):
    """A copy that starts again at each commit of the daemon would never end."""
    monkeypatch.setattr(maintenance, "SLICE_PAGES", 1)
    calls = []

    def write_meanwhile(done, total):
        calls.append((done, total))
        if len(calls) % 10 == 0:
            with closing(sqlite3.connect(tmp_path / "live.db")) as other, other:
                other.execute("UPDATE host SET name = name || 'x'")

    with closing(sqlite3.connect(recorded / "wslgpud.db")) as database:
        database.execute("VACUUM INTO ?", (str(tmp_path / "live.db"),))
    with closing(sqlite3.connect(tmp_path / "live.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")
    maintenance.backup(str(tmp_path / "live.db"), tmp_path / "copy.db", write_meanwhile)

    assert len(calls) == calls[-1][1]
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        assert copy.execute("SELECT name FROM host").fetchall() == [("pc",)]


def test_compacting_frees_what_deleted_samples_have_left(recorded, tmp_path):
    run = CliRunner().invoke
    with closing(sqlite3.connect(recorded / "wslgpud.db")) as database:
        database.execute("VACUUM INTO ?", (str(tmp_path / "wslgpud.db"),))
    with closing(sqlite3.connect(tmp_path / "wslgpud.db")) as database, database:
        database.execute("CREATE TABLE more AS SELECT zeroblob(3000000)")
        database.execute("DROP TABLE more")
    before = (tmp_path / "wslgpud.db").stat().st_size
    told = run(app, ["db", "compact", "--dry-run", "--state", str(tmp_path)]).stdout
    assert "3 of" in told
    assert (tmp_path / "wslgpud.db").stat().st_size == before

    done = run(app, ["db", "compact", "--state", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "wslgpud.db").stat().st_size < before
    assert run(app, ["db", "check", "--state", str(tmp_path)]).exit_code == 0


@pytest.mark.parametrize(
    ("value", "unit", "rate", "text"),
    [
        (0, "bytes", False, "0 KiB"),
        (-(5 << 20), "bytes", False, "-5 MiB"),
        (3 << 30, "bytes_per_second", False, "3.0 GiB/s"),
        (0.421, "ratio", False, "42.1%"),
        (1.5, "seconds", True, "150.0%"),
        (2.4e9, "hertz", False, "2.40 GHz"),
        (0.1234, "", False, "0.123"),
        (71, "celsius", False, "71 °C"),
        (12_345, "", True, "12,345/s"),
    ],
)
def test_values_are_written_as_people_write_them(value, unit, rate, text):
    assert amount(value, unit, rate=rate) == text


def test_the_axis_of_an_almost_flat_curve_shows_its_changes():
    ref = SeriesRef("memory_available_bytes", (), "pc")
    points = [(float(i), *[23 * 2**30 + i * 2**20] * 3) for i in range(150)]
    lines = chart([Curve(ref, "bytes", rate=False, points=points)], 0, 150, 1, size, width=80, height=12)
    told = [line.partition("┤")[0].strip() for line in lines.plain.splitlines()]

    assert [label for label in told if label][:3] == ["+200 MiB", "+91 MiB", "23 GiB"]
