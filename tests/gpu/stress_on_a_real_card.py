"""Runs the whole stress engine on a real card, from the command and from the nightly schedule.

    python -m tests.gpu.stress_on_a_real_card OUT [--python PYTHON] [--seconds 235]

Not a test: it needs an NVIDIA card that nobody uses and a Python with torch (by default this one). OUT gets
``result.json``, ``summary.txt``, the documents of each run, the metrics, and what was printed.
``--nvml LIBRARY --small`` go through the same on a machine without a card, with an imitated driver.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import traceback
import urllib.request
from datetime import datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WSLGPUD = (sys.executable, "-m", "wslgpud")
SOAK_SECONDS = 6.0
#: what anybody's training does first; it tries once, as they do
TRAINING = """
import time
began = time.time()
import torch
loaded = time.time()
x = torch.empty(int({share} * {total}), dtype=torch.uint8, device={device!r}).fill_(1)
if {device!r} == "cuda": torch.cuda.synchronize()
print("GOT", began, loaded, time.time(), x.numel(), flush=True)
time.sleep(1.5)
"""


class Session:
    """What the parts share: where things go, how long they may take, and what was found."""

    def __init__(self, options) -> None:
        self.out, self.small = options.out, options.small
        self.began = time.monotonic()
        self.end = self.began + options.seconds
        self.python = options.python
        self.result = {"began": time.time(), "parts": {}}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.state, self.config = self.out / "state", self.out / "wslgpud.toml"
        self.places = ("--config", str(self.config), "--state", str(self.state))
        self.nvml = options.nvml

    def say(self, text) -> None:
        line = f"[{time.monotonic() - self.began:6.1f} s] {text}"
        print(line, flush=True)
        with (self.out / "summary.txt").open("a") as file:
            file.write(line + "\n")

    def left(self) -> float:
        return self.end - time.monotonic()

    def part(self, name, work, *arguments):
        """Do one part; whatever happens there, the next goes on."""
        start = time.monotonic()
        try:
            found = work(*arguments)
        except BaseException as error:
            found = {"error": repr(error), "traceback": traceback.format_exc()}
            self.say(f"{name}: FAILED {error!r}")
            if isinstance(error, KeyboardInterrupt):
                raise
        self.result["parts"][name] = {"seconds": round(time.monotonic() - start, 2), "found": found}
        (self.out / "result.json").write_text(json.dumps(self.result, indent=1, default=str))
        return found

    def wslgpud(self, *arguments, timeout=90.0):
        """Run the real command; return its status, output, errors and seconds."""
        start = time.monotonic()
        done = subprocess.run(
            [*WSLGPUD, *arguments, *self.places], capture_output=True, text=True, timeout=timeout, cwd=ROOT, check=False
        )
        return done.returncode, done.stdout, done.stderr, time.monotonic() - start

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            return answer.read().decode()


def query(fields) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return [part.strip() for part in done.stdout.splitlines()[0].split(",")]


def used_bytes() -> int:
    return int(query("memory.used")[0]) << 20


def facts(session):
    code = "import json,sys,torch; print(json.dumps([sys.version, torch.__version__, torch.version.cuda]))"
    done = subprocess.run([session.python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    found = {"date": datetime.now().astimezone().isoformat(), "python_with_torch": done.stdout.strip() or done.stderr}
    if not session.small:
        found["card"] = query("name,driver_version,memory.total,memory.used,clocks.max.memory,ecc.mode.current")
    session.say(found)
    return found


def first_minute(after_seconds):
    """Return the first full minute that is so far away, and the seconds until then."""
    now = datetime.now().astimezone()
    soonest = now + timedelta(seconds=after_seconds)
    when = soonest.replace(second=0, microsecond=0) + timedelta(minutes=1)
    return when, (when - now).total_seconds()


def start_daemon(session, schedule):
    nvml = f'nvml_library = "{session.nvml}"\n' if session.nvml else ""
    session.config.write_text(
        f"[sampling]\n{nvml}[server]\nport = {session.port}\n"
        f'[stress]\nschedule = "{schedule}"\njitter_minutes = 0\nretries = 5\n'
        f'retry_minutes = 1\nsettle_seconds = 3\nsoak_seconds = {SOAK_SECONDS}\npython = "{session.python}"\n'
    )
    log = (session.out / "daemon.log").open("wb")
    return subprocess.Popen([*WSLGPUD, "run", *session.places], stdout=log, stderr=log, cwd=ROOT)


def command(session, *mode, name):
    """Run ``wslgpud stress`` to its end, beside the running daemon."""
    status, text, complaints, seconds = session.wslgpud("stress", *mode, "--json")
    (session.out / f"{name}.json").write_text(text)
    (session.out / f"{name}.stderr").write_text(complaints)
    document = json.loads(text)
    v, detail = document["values"], document["detail"]
    share = v["verified_bytes"] / v["free_bytes"] if v.get("free_bytes") and v.get("verified_bytes") else 0
    session.say(
        f"wslgpud stress {' '.join(mode)}: status {status}, {document['verdict']} {document['reason']},"
        f" {[f['text'] for f in document['findings']]}, {seconds:.1f} s in all, verified {share:.3%} of free;"
        f" phases { ({k: round(s, 2) for k, s in detail.get('phases', {}).items()}) }"
    )
    rates = {k: round(v[f"{k}_median"] / 1e9) for k in ("write", "change", "read") if f"{k}_median" in v}
    session.say(f"   GB/s {rates}")
    return {"status": status, "seconds": seconds, "verdict": document["verdict"], "rates": rates, "coverage": share}


def passes(session, seconds):
    arguments = ["--seconds", f"{seconds:.0f}", "--json", str(session.out / "passes.json")]
    with (session.out / "passes.txt").open("wb") as file:
        subprocess.run(
            [session.python, "-m", "tests.gpu.passes", *arguments, *(["--small"] if session.small else [])],
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=seconds + 25,
            cwd=ROOT,
            check=False,
        )
    document = json.loads((session.out / "passes.json").read_text())
    best = {}
    for kind in ("read", "write", "change"):
        rows = sorted((r for r in document["rows"] if r["kind"] == kind), key=lambda r: -r["chunk"])[:8]
        best[kind] = rows
        for row in rows:
            speed = f"{row['chunk'] / 1e9:6.0f} GB/s (queue {row['queue'] / 1e9:6.0f})"
            exact = "exact" if row["exact"] else ""
            session.say(f"   {kind:6} {row['chunk_bytes'] >> 20:5} MiB {speed} {row['name']} {exact}")
    session.say(f"   not measured: {document['missing'][:6]}")
    return best


def worker_of(pid) -> int | None:
    """Return the pid of the stress worker among a process's children."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if b"stress/worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    return None


def until(what, seconds, every=0.05):
    """Wait for ``what`` to return something; None when it does not come."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(every)
    return None


def night(session, daemon, due_monotonic):
    """Wait until the scheduled run has begun and ended; its result comes a little later."""
    wait = max(0.0, due_monotonic - time.monotonic()) + 75  # put off once: a minute later
    worker = until(lambda: worker_of(daemon.pid), min(wait, session.left() - 60))
    if not worker:
        raise RuntimeError(f"no nightly run began; daemon.log: {(session.out / 'daemon.log').read_text()[-400:]}")
    late = time.monotonic() - due_monotonic
    session.say(f"the nightly run began {late:.1f} s after it was due")
    start = time.monotonic()
    gone = until(lambda: worker_of(daemon.pid) is None, 90)
    session.say(f"   and its worker was gone after {time.monotonic() - start:.1f} s")
    time.sleep(1.0)
    return {"late_seconds": late, "worker_seconds": time.monotonic() - start, "gone": bool(gone)}


def kept(session):
    """See what became of the nightly run, or of the longest where there was none: a row, metrics."""
    mode = "nightly" if "night" in session.result["parts"] else "full"

    def row():
        status, text, _, _ = session.wslgpud("stress", "history", "--json", timeout=30)
        runs = json.loads(text) if status == 0 and text.strip().startswith("[") else []
        due = [r for r in runs if r["key"].get("mode") == mode and r["verdict"] != "left"]
        return runs if due else None

    runs = until(row, max(5.0, min(75.0, session.left() - 15)), every=2.0)
    text = session.metrics()
    (session.out / "metrics.prom").write_text(text)
    lines = [line for line in text.splitlines() if line.startswith("wslgpud_vram_stress")]
    session.say(f"   {len(lines)} series of wslgpud_vram_stress_* are exported")
    if not runs:
        raise RuntimeError(f"the {mode} run is not in the history")
    nightly = [r for r in runs if r["key"].get("mode") == mode and r["verdict"] != "left"][-1]
    session.say(f"   the {mode} run in the history: {nightly['verdict']} {nightly['reason']} {nightly['findings']}")
    number = str(nightly["id"])
    shown_as = {"history": (), "show": (number,), "compare": ()}
    for name, arguments in (*shown_as.items(), ("show", (number, "--json"))):
        status, shown, errors, _ = session.wslgpud("stress", name, *arguments, timeout=30)
        (session.out / f"{name}{'.json' if '--json' in arguments else ''}.txt").write_text(
            f"status {status}\n{shown}\n{errors}"
        )
    status, _, errors, _ = session.wslgpud("stress", "history", "--plot", str(session.out / "history.png"), timeout=40)
    return {"runs": runs, "metrics": lines, "plot": [status, errors[-300:]]}


def foreign(session):
    """Start a training in the middle of a run: it must get what it asks for at its first try."""
    run = subprocess.Popen(
        [*WSLGPUD, "stress", "--full", "--json", *session.places],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        worker = until(lambda: worker_of(run.pid), 40)
        if not worker:
            raise RuntimeError(f"no worker began: {run.communicate(timeout=20)}")
        if session.small:
            time.sleep(2.5)
        else:
            total = int(query("memory.total")[0]) << 20
            # Polled by nvidia-smi: a monitor that somebody looks at must not end the run either.
            until(lambda: used_bytes() > 0.9 * total or worker_of(run.pid) is None, 30, every=0.1)
            session.say(f"   the run has taken {used_bytes() / 2**30:.1f} GiB; now a training starts")
        code = TRAINING.format(
            share=0.7, total=1 << 28 if session.small else total, device="cpu" if session.small else "cuda"
        )
        started = time.monotonic()
        training = subprocess.Popen(
            [session.python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        until(lambda: worker_of(run.pid) is None, 40, every=0.01)
        gone, gone_wall = time.monotonic() - started, time.time()
        said, _ = training.communicate(timeout=60)
        output, complaints = run.communicate(timeout=30)
    finally:
        if run.poll() is None:
            run.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(10)
            run.kill()
    document = json.loads(output)
    last = said.strip().splitlines()[-1] if said.strip() else ""
    found = {
        "verdict": document["verdict"],
        "reason": document["reason"],
        "worker_gone_seconds": gone,
        "training": said[-600:],
        "complaints": complaints[-300:],
    }
    if last.startswith("GOT"):
        began, loaded, got, size = map(float, last.split()[1:])
        found |= {
            "loading_seconds": loaded - began,
            "allocating_seconds": got - loaded,
            "bytes": size,
            "gone_before_it_had_loaded_seconds": loaded - gone_wall,
        }
        session.say(
            f"a training got {size / 2**30:.1f} GiB at its first try,"
            f" {got - loaded:.2f} s after torch was loaded ({loaded - began:.1f} s);"
            f" the worker was gone {gone:.2f} s after the program started;"
            f" the run: {document['verdict']}, {document['reason']}"
        )
    else:
        session.say(f"the training DID NOT get its memory: {said[-300:]}; the run: {document['verdict']}")
    return found


def batteries(session, seconds):
    options = ["--seconds", f"{seconds:.0f}", *(["--small"] if session.small else [])]
    with (session.out / "batteries.txt").open("wb") as file:
        try:
            subprocess.run(
                [session.python, "-m", "tests.gpu.stress_batteries", str(session.out), *options],
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=seconds + 20,
                cwd=ROOT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            session.say("the batteries took too long; what there is of them:")
    document = json.loads((session.out / "batteries.json").read_text())
    clean = [run["verdict"] for run in document["clean"]]
    right = {title: row.get("right") for title, row in document["planted"].items()}
    session.say(f"{clean.count('passed')} of {len(clean)} clean runs without a false error")
    missed = [title for title, ok in right.items() if not ok]
    session.say(
        f"planted and rightly found: {len(right) - len(missed)} of {len(right)}; not: {missed};"
        f" no time for {document['unplanted']}"
    )
    return {"clean": clean, "planted": right, "rivals": document.get("rivals")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default=sys.executable, help="a Python with torch")
    parser.add_argument("--seconds", type=float, default=235.0)
    parser.add_argument("--without", nargs="*", default=[], help="parts to leave out: passes, night")
    parser.add_argument("--nvml", default="", help="management library instead of the driver's")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    session = Session(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    when, seconds = first_minute(8 if session.small else 24)
    due = time.monotonic() + seconds
    schedule = "off" if "night" in options.without else f"{when.minute} {when.hour} * * *"
    daemon = start_daemon(session, schedule)
    session.say(f"schedule {schedule}: {seconds:.0f} s until {when:%H:%M}")
    try:
        session.part("facts", facts, session)
        session.part("quick", lambda: command(session, "--quick", name="quick"))
        spare = due - time.monotonic() - 14
        if spare > 18 and "passes" not in options.without:
            session.part("passes", passes, session, min(45.0, spare))
        if "night" not in options.without:
            session.part("night", night, session, daemon, due)
        if "passes" not in {*session.result["parts"], *options.without}:
            session.part("passes", passes, session, 35.0)
        session.part("full", lambda: command(session, "--full", name="full"))
        session.part("foreign", foreign, session)
        session.part("batteries", batteries, session, max(25.0, session.left() - 30))
        session.part("kept", kept, session)
    finally:
        daemon.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(10)
        daemon.kill()
        session.say(f"done; the daemon ended with status {daemon.poll()}")


if __name__ == "__main__":
    main()
