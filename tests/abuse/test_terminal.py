"""Whatever others named, wrote or sent us: no command of ours hands it to the terminal as it is."""

from __future__ import annotations

import ast
import base64
import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from rich.table import Table

from tests.abuse import hostile
from tests.abuse.hostile import ATTACK, MARK
from tests.abuse.test_secrets import around
from tests.page.stage import TRACES, Stage, nights, trace
from tests.support.daemons import PATIENCE_SECONDS, clean_environment
from tests.support.elsewhere import Elsewhere, seen
from wslgpud.app import process as logs
from wslgpud.cli.console import Console
from wslgpud.sampling.noted_runs import expected
from wslgpud.security import redaction
from wslgpud.sources.procfs import Peer, identity
from wslgpud.words.units import printable

pytestmark = pytest.mark.usefixtures("without_torch")

ROOT = Path(__file__).parent.parent.parent
#: What Rich writes itself: colours, and for its bars the cursor.
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|\r")

STATE = ("--state", "{here}/state")
LIMIT, CARDS = ("--host-root", "{here}/limit"), ("--host-root", "{here}/cards")
#: Each has foreign text to show.
COMMANDS = {
    "history": ("history", *STATE),
    "history as JSON": ("history", "--json", *STATE),
    "history drawn": ("history", "headroom", *STATE),
    "history as CSV": ("history", "headroom", "--csv", *STATE),
    "export": ("export", "-", "headroom", "--format", "csv", *STATE),
    "export as OpenMetrics": ("export", "-", "headroom", "--format", "openmetrics", *STATE),
    "stress history": ("stress", "history", *STATE),
    "stress history drawn": ("stress", "history", "--plot", *STATE),
    "stress show": ("stress", "show", "2", *STATE),
    "stress compare": ("stress", "compare", *STATE),
    "incidents": ("incidents", *STATE),
    "incidents ID": ("incidents", "{incident}", *STATE),
    "incidents ID as JSON": ("incidents", "{incident}", "--json", *STATE),
    "alerts list": ("alerts", "list", *STATE),
    "alerts list as JSON": ("alerts", "list", "--json", *STATE),
    "alerts test": ("alerts", "test", "--config", "{here}/command.toml"),
    "db info": ("db", "info", *STATE),
    "status": ("status", *LIMIT),
    "status of two cards": ("status", *CARDS),
    "status as JSON": ("status", "--json", *LIMIT),
    "monitor once": ("monitor", "-o", *LIMIT),
    "monitor once of two cards": ("monitor", "-o", *CARDS),
    "doctor": ("doctor", "--all", *LIMIT),
    "replay": ("replay", "{here}/trace.jsonl"),
    "replay as JSON": ("replay", "--json", "{here}/trace.jsonl"),
    "config show": ("config", "show", "--config", "{here}/hosts.toml"),
    "config with a hostile key": ("config", "check", "--config", "{here}/key.toml"),
    "config with a hostile value": ("config", "check", "--config", "{here}/value.toml"),
    "wslconfig check": ("wslconfig", "check", "--file", "{here}/.wslconfig"),
    "wslconfig show": ("wslconfig", "show", "--file", "{here}/.wslconfig", *LIMIT),
    "fit of a folder": ("fit", f"{{here}}/{MARK}{ATTACK.replace(MARK, '')}", "--usable", "14GB"),
    "fit in a format": ("fit", "7B", "--precision", ATTACK),
    "guard": ("guard", "--log", "{here}/log", *STATE, "--", f"{{here}}/{ATTACK}"),
    "an unknown option": ("history", f"--{ATTACK}"),
    "a file that is not there": ("replay", f"{ATTACK}.jsonl"),
    "a wrong moment": ("history", "ram", "--since", ATTACK, *STATE),
    "an unknown command": (ATTACK,),
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit status of each command and its output on a real terminal."""
    here = tmp_path_factory.mktemp("hostile")
    incident = _hostile_state(here / "state")
    hostile.machine("cgroup-limit", here / "limit")
    hostile.machine("two-gpus", here / "cards")
    hostile.trace(TRACES / "h200" / "h200-slow_leak-1.jsonl.gz", here / "trace.jsonl")
    text = json.dumps(ATTACK).replace("\\udb40\\udc41", "")  # TOML has no surrogates
    worker = f"import sys; sys.stderr.write({ATTACK!r}); sys.exit(1)"
    command = f"[alerts]\ncommand = {json.dumps([sys.executable, '-c', worker])}\ndesktop = 'off'\n"
    (here / "command.toml").write_text(command)
    (here / "hosts.toml").write_text(f"[server]\nallowed_hosts = [{text}]\n")
    (here / "key.toml").write_text(f"[server]\n{text} = 1\n")
    (here / "value.toml").write_text(f"[alerts]\nquiet_hours = {text}\n")
    (here / ".wslconfig").write_text(f"[wsl2]\nmemory={ATTACK}\n{ATTACK}=1\nkernel={ATTACK}\n")
    model = here / ATTACK
    model.mkdir()
    tiny = {
        "model_type": "llama",
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "vocab_size": 1000,
    }
    (model / "config.json").write_text(json.dumps(tiny))
    program = here / f"{ATTACK}.sh"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    orders = [([word.format(here=here, incident=incident) for word in words], "", "") for words in COMMANDS.values()]
    orders[list(COMMANDS).index("guard")][0][-1] = str(program)
    orders.append((["monitor", "--host-root", str(here / "limit")], MARK, "q"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.abuse.on_a_terminal"],
        input=json.dumps(orders),
        env={**clean_environment(here), "TERM": "xterm-256color"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=2 * PATIENCE_SECONDS,
    )
    results = [(status, base64.b64decode(seen).decode()) for status, seen in json.loads(done.stdout)]
    return dict(zip([*COMMANDS, "the live view"], results, strict=True))


def _hostile_state(folder: Path) -> int:
    """Make a daemon's state, and put the attack behind every text in it; return an incident's number."""
    folder.mkdir()
    stage = Stage(folder, database=folder / "wslgpud.db", name="here")
    nights(stage, 12)
    stage.play(trace("h200/h200-slow_leak-1"), 110)
    number = next(iter(stage.ledger.open.values())).id
    stage.close()
    assert hostile.poison_database(folder / "wslgpud.db") > 40
    return number


@pytest.mark.slow
@pytest.mark.xdist_group("terminal")  # else each worker makes what is shown
@pytest.mark.parametrize("name", COMMANDS)
def test_no_foreign_escape_reaches_the_terminal(name: str, shown: dict[str, tuple[int, str]]) -> None:
    _, text = shown[name]
    foreign = {c for c in OWN.sub("", text) if not c.isprintable() and c not in "\n\t"}

    assert MARK in text, "the attack was not shown at all"
    assert "Traceback" not in text
    assert not foreign, {hex(ord(c)): around(text, c) for c in foreign}
    assert "\x1b[8m" not in text, "letters can be hidden"


@pytest.mark.slow
@pytest.mark.xdist_group("terminal")  # else each worker makes what is shown
def test_none_is_drawn_by_the_live_view_either(shown: dict[str, tuple[int, str]]) -> None:
    status, text = shown["the live view"]
    never = {c for c in ATTACK if not c.isprintable()} - set("\x1b\x07\x08")  # which Textual uses itself

    assert status == 0
    assert MARK in text
    assert not never & set(text)
    assert not [escape for escape in ("\x1b]0;", "\x1b]52;", "\x1b[8m") if escape in text]


def test_a_usage_error_cannot_hide_in_a_stream_click_reopens() -> None:
    beneath = io.TextIOWrapper(io.BytesIO(), encoding="ascii")  # which Click would open anew as UTF-8
    stream = redaction.Boundary(beneath)

    assert not hasattr(stream, "buffer")
    assert not stream.isatty()


def test_nor_in_the_bytes_that_click_writes_for_a_shell() -> None:
    beneath = io.StringIO()
    click.echo("plain,a\x1b[8mb\xff".encode("latin-1"), file=redaction.Boundary(beneath))

    assert beneath.getvalue() == "plain,a\ufffd[8mb\ufffd\n"


def test_a_name_with_a_line_feed_forges_no_line_of_the_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.fstat(2)
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        for stream in ("", f"{status.st_dev}:{status.st_ino}"):  # a terminal, the journal
            monkeypatch.setenv("JOURNAL_STREAM", stream)
            logs.log_from("info")
            logging.getLogger("wslgpud").warning("source %s", "x\n<0>kernel: all is lost\r<0>y\x1b]0;t\x07")
    finally:
        root.handlers[:], level = before
        root.setLevel(level)

    lines = capsys.readouterr().err.split("\n")
    assert len(lines) == 3
    assert [line.partition("source")[2] for line in lines[:2]] == [
        " x\ufffd<0>kernel: all is lost\ufffd<0>y\ufffd]0;t\ufffd"
    ] * 2


def test_nor_does_what_guards_announce(tmp_path: Path) -> None:
    host = Elsewhere(tmp_path)
    me = identity(host, os.getpid())
    assert me is not None
    note = {
        "kind": "guard",
        "began_mono": 0.0,
        "peaks": {"ram": 1 << 30},
        **dict.fromkeys(("what", "who", "phase"), ATTACK),
    }
    host.runs.announce(Peer(me.pid, os.geteuid()), note)
    [noted] = notes = host.runs.read()
    [peak] = expected(notes, ())
    [shown] = seen(host)

    assert MARK in peak.who
    assert noted.who == me
    assert all(text.isprintable() for text in (peak.who, shown["what"], shown["phase"]))


@pytest.mark.parametrize("kept", ["", "\n\t"])
def test_whatever_is_forbidden_is_replaced_and_nothing_else(kept: str) -> None:
    codes = (
        *range(0x20),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        0x200B,
        0x200D,
        0x200E,
        0x200F,
        0x061C,
        0xFEFF,
        0x00AD,
        0x2028,
        0x2029,
        0xD800,
        0xDFFF,
    )
    forbidden = set(map(chr, codes)) - set(kept)
    fine = "aé中文 ░█⣿━╭─ °C → ✓ 🙂" + kept

    assert printable(fine, kept) == fine
    assert all(printable(f"a{c}b", kept) == "a\ufffdb" for c in forbidden)


def test_markup_in_a_string_is_plain_text_on_every_console() -> None:
    paper = io.StringIO()
    console = Console(file=paper, width=80, force_terminal=True, color_system="truecolor")
    table = Table("[red]heading", box=None)
    table.add_row("[link=file:///etc]cell[/link]")
    console.print("[red]a[/nothing] :smiley:", table)

    assert "[red]a[/nothing] :smiley:" in paper.getvalue()
    assert "[red]heading" in paper.getvalue()
    assert "[link=file:///etc]cell[/link]" in paper.getvalue()
    assert "\x1b]8;" not in paper.getvalue()


#: Programs whose standard output is a pipe to us, or that pass a guarded command's own output on unchanged.
#: Whatever they print of others is made harmless where it is read, or where they write it (``os.write``).
SPEAK_TO_PIPES = (
    *("probes/", "stress/worker/", "advise/fit/tracer/"),
    *("advise/doctor/torch_probe.py", "alerts/channels/apprise_worker.py"),
)
OWN_WRITERS = {
    "output.py": {"sys.stdout", "sys.stderr"},
    "cli/console.py": {"rich.Console"},
    "advise/guard/relay.py": {"os.write"},  # what the guarded command prints is its own
    "advise/guard/runner.py": {"/dev/tty"},  # whose foreground it passes on, and writes nothing
    "brake/watchdog.py": {"sys.stdout.buffer"},  # a pipe to the daemon, into which go plus signs
    "cli/guard.py": {"os.write"},  # to a disk that may be full
}


def test_no_module_writes_past_the_boundary() -> None:
    package = ROOT / "wslgpud"
    modules = {str(path.relative_to(package)): path for path in package.rglob("*.py")}
    found = {
        name: ways
        for name, path in modules.items()
        if not name.startswith(SPEAK_TO_PIPES)
        and (ways := set(ways_around(path.read_text())) - OWN_WRITERS.get(name, set()))
    }

    assert len(modules) > 200
    assert not found


def ways_around(source: str) -> Iterator[str]:
    """Yield what code could write with past ``wslgpud.security.redaction``: other streams, consoles, descriptors."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.__stdout__", "sys.__stderr__"):
            yield ast.unparse(node)
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"sys\.std(out|err)\.\w+", ast.unparse(node)):
            if node.attr not in ("write", "flush"):
                yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rich":
            yield from ("rich.Console" for a in node.names if a.name in ("Console", "print", "console"))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.write", "os.fdopen", "os.writev"):
            first = ast.unparse(node.args[0])
            if first in ("1", "2", "target"):
                yield ast.unparse(node.func)
        elif isinstance(node, ast.Constant) and node.value in ("/dev/tty", "/dev/stdout", "/dev/stderr"):
            yield str(node.value)


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.__stdout__.write(x)",
        "import sys; sys.stdout.buffer.write(x)",
        "import os; os.write(2, x)",
        "from rich.console import Console",
        "from rich import print",
        "open('/dev/tty', 'w')",
    ],
)
def test_and_such_a_module_would_be_found(code: str) -> None:
    assert list(ways_around(code))
