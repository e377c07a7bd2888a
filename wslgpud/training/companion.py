"""The companion in a training process: counts its steps and reports the memory retained by each to the daemon.

Self-contained: it is loaded into the program's Python, which has none of our modules, so it imports only the standard
library (Python 3.8 and later), and torch only if the program has. It never raises, never blocks and never keeps the
program from exiting; without a daemon it only counts.

The program's own thread reads the allocator after a step, at most five times a second and without synchronising with
the card; a thread announces it to the daemon (see ``wslgpud.active_runs``) over a connection that stands for the run,
and is found again after a restart of either.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import logging
import os
import select
import sys
import threading
import time
import traceback
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # old Pythons that run this know only the older names
    from collections.abc import Callable, Sequence

    #: called between two steps with the level, one of ``_LEVELS``, and the seconds left, if known
    Hook = Callable[[str, float | None], Any]
    #: a block of readings: the step of the last one, minimum and maximum use, and the peak so far
    Block = list[int]

log = logging.getLogger("wslgpud.training")

#: Interval of reading the allocator: beside a training a reading takes 200 us (README.md), 0.1 % of its time.
READ_SECONDS = 0.2
TELL_SECONDS, LOOK_SECONDS, WORKERS_SECONDS = 1.0, 5.0, 15.0
#: window of the current pace; half of it is enough for a pace to compare with
PACES = 60
#: Readings in the finest block, blocks kept per scale, and blocks that form one of the next. Eight blocks of six are
#: fifty steps; the coarsest scale covers 49,000 readings, more than an hour.
READINGS, BLOCKS, MERGED, SCALES = 6, 8, 4, 6
#: kinds of memory, RAM included, that the daemon reads of one training
MAX_CARDS, MAX_WORKERS, MAX_THREADS = 4, 64, 64
#: the socket in a daemon's state folder, see ``wslgpud.client``, and that of the service, which has its account
SOCKET, SYSTEM_STATE, _SERVICE = "control.sock", "/var/lib/wslgpud", "wslgpud"
#: interval of looking for a daemon, and how long its answer is waited for
CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 0.2
_MAX_BYTES = 1 << 14
#: levels of the daemon's warnings, in order
_LEVELS = ("", "warning", "critical", "emergency")


class Floors:
    """Use after each step, in blocks of 6, 24, 96, ... readings, the last eight of each."""

    def __init__(self) -> None:
        self.scales: list[list[Block]] = [[] for _ in range(SCALES)]
        self._closed = [0] * SCALES
        self._open: list[Block] = []

    def add(self, step: int, used: int, peak: int) -> None:
        """Take in one reading, in bytes."""
        self._open.append([step, used, used, peak])
        if len(self._open) == READINGS:
            self._close(0, self._open)
            self._open = []

    def _close(self, scale: int, blocks: Sequence[Block]) -> None:
        last, lowest, highest, peaks = zip(*blocks)
        scale_blocks = self.scales[scale]
        scale_blocks.append([last[-1], min(lowest), max(highest), peaks[-1]])
        del scale_blocks[:-BLOCKS]
        self._closed[scale] += 1
        if self._closed[scale] % MERGED == 0 and scale + 1 < SCALES:
            self._close(scale + 1, scale_blocks[-MERGED:])


class Announcement:
    """A run as the daemon knows it: it lasts as long as a connection, over which each document is posted.

    Nothing here raises, or waits for more than ``ANSWER_SECONDS``; a daemon that starts later is found. For one thread.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        """Connect to nothing yet; of these state folders the first counts that has a daemon."""
        self._folders = folders
        self._socket: Any = None
        self._pid, self._tried = 0, float("-inf")
        self._unread, self._waits = b"", False
        #: to the last document
        self.answer: dict[str, Any] = {}

    def connect(self) -> bool:
        """Return whether a daemon is there; look for one from time to time."""
        if self._pid != os.getpid():  # after a fork the connection is our parent's
            self.close()
            self._pid, self._tried = os.getpid(), float("-inf")
        now = time.monotonic()
        if self._socket is None and now - self._tried >= CONNECT_SECONDS:
            self._tried = now
            for folder in self._folders:
                with suppress(OSError):
                    self._socket = _connected(folder)
                    break
        return self._socket is not None

    def tell(self, document: dict[str, Any]) -> None:
        """Post a document, unless the daemon still owes an answer to the one before."""
        try:
            if self.connect() and not self._owes():
                self._post(json.dumps(document, separators=(",", ":")))
                waiting, until = select.poll(), time.monotonic() + ANSWER_SECONDS
                waiting.register(self._socket, select.POLLIN)
                while self._owes() and (left := until - time.monotonic()) > 0:
                    waiting.poll(1000 * left)
        except (OSError, ValueError) as error:
            log.debug("the daemon is not told: %r", error)
            self.close()

    def close(self) -> None:
        """End the run."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._unread, self._waits, self.answer = None, b"", False, {}

    def _post(self, body: str) -> None:
        head = f"POST /api/v1/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self._waits = True
        if self._socket.send(f"{head}{body}".encode()) < len(head) + len(body):
            raise OSError("its buffer is full")

    def _owes(self) -> bool:
        """Read without waiting; return whether the answer is still incomplete. Raises OSError: the daemon has ended."""
        with suppress(BlockingIOError):
            while len(self._unread) < _MAX_BYTES:
                received = self._socket.recv(_MAX_BYTES)
                if not received:
                    raise OSError("the daemon has ended")
                self._unread += received
        head, end, body = self._unread.partition(b"\r\n\r\n")
        lines = dict(line.partition(b": ")[::2] for line in head.split(b"\r\n"))
        if end and len(body) >= int(lines.get(b"content-length", 0)):
            self.answer = json.loads(body) if head.startswith(b"HTTP/1.1 200") else {}
            self._unread, self._waits = b"", False
        return self._waits


def _connected(folder: str) -> Any:
    """Return a connection to the daemon of a state folder.

    Raises OSError: none listens there, or one of a user who is neither root, nor the service's account, nor ours.
    """
    import socket  # only in trainings, not in each Python that they start

    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # addresses must be shorter than paths may be
    line = socket.socket(socket.AF_UNIX)
    try:
        line.setblocking(False)
        line.connect(f"/proc/self/fd/{place}/{SOCKET}")
        credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if int.from_bytes(credentials[4:8], sys.byteorder) not in _trusted():
            raise PermissionError("another user's daemon")
    except OSError:
        line.close()
        raise
    finally:
        os.close(place)
    return line


class Companion:
    """State of this process's training; ``stepped`` is called after each optimizer step."""

    def __init__(self) -> None:
        self.steps = 0
        self.watching = False
        self.facts: dict[str, Any] = {}
        self._hooks: list[Hook] = []
        self._of: Callable[[], Any] = lambda: None
        self._due = 0.0
        self._warned: tuple[str, float | None] | None = None
        self._daemon_reads = False
        self._floors: dict[str, Floors] = {}
        self._memory: dict[str, dict[str, Any]] = {}
        self._cards: dict[int, str] = {}
        self._usual_seconds = float("inf")
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._workers_bytes = 0
        self._ended = False
        home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.environ.get("HOME", "/"), ".local", "state")
        self._line = Announcement([os.path.join(home, "wslgpud"), SYSTEM_STATE])

    def stepped(self, optimizer: Any, *_: Any) -> None:
        """Count a step; several optimizers in turn count once."""
        try:
            if self._of() is not optimizer:
                if self._of() is not None:
                    return
                self._begin(optimizer)
            self.steps += 1
            if self._daemon_reads and time.monotonic() >= self._due:
                self._read()
            if self._warned is not None:
                self._warn()
        except Exception as error:  # an error here must not end a training
            log.debug("the companion stops: %r", error)
            self.close()

    def on_warning(self, hook: Hook) -> None:
        """Call ``hook(level, seconds_left)`` between two steps when the daemon warns of this process's memory."""
        self._hooks.append(hook)

    def after_import(self, name: str, act: Callable[[Any], None]) -> None:
        """Call ``act`` with a module as soon as the program has loaded it."""
        if name in sys.modules:
            act(sys.modules[name])
        else:
            sys.meta_path.insert(0, _Finder(name, act))

    def close(self) -> None:
        """Stop counting, and end the run."""
        self._of = lambda: self  # matches no optimizer
        self._daemon_reads = False
        self._ended = True
        self._line.close()

    def _begin(self, optimizer: Any) -> None:
        self._of = weakref.ref(optimizer)
        if self._thread is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._daemon_reads = self._line.connect()
            self._thread = threading.Thread(target=self._tell, name="wslgpud", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def _read(self) -> None:
        self._due = time.monotonic() + READ_SECONDS
        # pages: https://man7.org/linux/man-pages/man5/proc_pid_statm.5.html
        _, resident, shared, *_ = map(int, _contents("/proc/self/statm").split())
        self._note("ram", (resident - shared) * _PAGE + self._workers_bytes, 0, {})
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return
        for card in range(min(cuda.device_count(), MAX_CARDS)):
            stats = cuda.memory_stats_as_nested_dict(card)
            used = stats.get("allocated_bytes", {}).get("all", {})
            if not used.get("peak"):
                continue
            more = {
                "reserved": stats["reserved_bytes"]["all"]["current"],
                "pieces": stats["inactive_split_bytes"]["all"]["current"],
                "retries": stats["num_alloc_retries"],
                "failures": stats["num_ooms"],
            }
            name = self._cards.get(card) or self._cards.setdefault(card, _card(cuda, card))
            self._note(name, used["current"], used["peak"], more)

    def _note(self, name: str, used: int, peak: int, more: dict[str, int]) -> None:
        floors = self._floors.setdefault(name, Floors())
        floors.add(self.steps, used, peak)
        self._memory[name] = {"name": name, "used": used, "peak": peak, **more, "scales": floors.scales}

    def _warn(self) -> None:
        (level, seconds), self._warned = self._warned or ("", None), None
        for hook in self._hooks:
            try:
                hook(level, seconds)
            except Exception:  # a failed checkpoint must be reported, and the program continue
                traceback.print_exc()

    def _tell(self) -> None:
        own = os.getpid()
        began, told, counted, written = time.monotonic(), 0.0, 0.0, -1
        pace: list[tuple[float, int]] = []
        worst = 0
        while self._pid == own and not self._ended:
            time.sleep(TELL_SECONDS)
            now = time.monotonic()
            try:
                if now - counted >= WORKERS_SECONDS:
                    counted, self._workers_bytes = now, sum(map(_proportional_bytes, _children()))
                    self.facts.update(_pinned())
                pace = [*pace[1 - PACES :], (now, self.steps)]
                self._daemon_reads = self._line.connect()
                if self._daemon_reads and (self.steps != written or now - told >= LOOK_SECONDS):
                    written, told = self.steps, now
                    self._line.tell(self._document(began, pace))
                    worst = self._heed(worst)
            except Exception as error:  # as above
                log.debug("progress is not reported: %r", error)
        self._line.close()  # it may have been opened again meanwhile

    def _heed(self, worst: int) -> int:
        """Have the hooks called for a warning worse than any since the last calm; return how bad it is by now."""
        if "warned" not in self._line.answer:  # nothing was answered, which is no all-clear
            return worst
        level, seconds = self._line.answer["warned"] or ("", None)
        now = _LEVELS.index(level)
        if now > worst:
            self._warned = (level, seconds)
        return max(now, worst) if now else 0

    def _document(self, began: float, pace: Sequence[tuple[float, int]]) -> dict[str, Any]:
        (since, before), (now, steps) = pace[0], pace[-1]
        script = os.path.basename(sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python")
        facts = {"what": script, "who": script, "phase": "", "began_mono": began}
        if steps > before:
            seconds = facts["step_seconds"] = (now - since) / (steps - before)
            if len(pace) > PACES // 2:
                facts["usual_step_seconds"] = self._usual_seconds = min(seconds, self._usual_seconds)
        own = {"kind": "training", "steps": steps}
        return {**facts, **self.facts, **own, "memory": list(self._memory.values())}


#: this process's companion
COMPANION = Companion()
_PAGE = os.sysconf("SC_PAGE_SIZE")


def watch(on_memory_warning: Hook | None = None) -> Companion:
    """Count the steps of every optimizer from now on, once torch is loaded; return the companion.

    ``on_memory_warning(level, seconds_left)`` is called between two steps.
    """
    if on_memory_warning is not None:
        COMPANION.on_warning(on_memory_warning)
    if not COMPANION.watching:
        COMPANION.watching = True
        COMPANION.after_import("torch.optim.optimizer", _hook)
    return COMPANION


def _hook(module: Any) -> None:
    module.register_optimizer_step_post_hook(COMPANION.stepped)


class _Finder:
    """Finds one module by the usual means, and runs a function after it is loaded."""

    def __init__(self, name: str, act: Callable[[Any], None]) -> None:
        self._name, self._act = name, act

    def find_spec(self, name: str, *_: Any) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._act)  # type: ignore[assignment]  # acts like one
        return spec


class _Loader:
    """A loader that runs a function at the end."""

    def __init__(self, loader: Any, act: Callable[[Any], None]) -> None:
        self._loader, self._act = loader, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        try:
            self._act(module)
        except Exception as error:  # as above
            log.debug("%s cannot be patched: %r", module.__name__, error)


def _card(cuda: Any, index: int) -> str:
    """Return a card's UUID in NVML's format; older versions of torch do not report it."""
    uuid = str(getattr(cuda.get_device_properties(index), "uuid", ""))
    return uuid if uuid.startswith("GPU-") or not uuid else f"GPU-{uuid}"


def _pinned() -> dict[str, int]:
    """Return the host memory pinned by PyTorch; versions before 2.9 do not report it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized() or not hasattr(cuda, "host_memory_stats"):
        return {}
    pinned = cuda.host_memory_stats().get("allocated_bytes.current")
    return {} if pinned is None else {"pinned": pinned}


def _contents(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(_MAX_BYTES)


def _children() -> list[int]:
    """Return our children, mainly loader workers; none where the kernel does not list them."""
    pids: list[int] = []
    with suppress(OSError):
        for thread in os.listdir("/proc/self/task")[:MAX_THREADS]:
            pids += map(int, _contents(f"/proc/self/task/{thread}/children").split())
    return pids[:MAX_WORKERS]


def _proportional_bytes(pid: int) -> int:
    """Return a worker's own anonymous memory, excluding pages shared with us since the fork."""
    try:
        lines = _contents(f"/proc/{pid}/smaps_rollup").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(b"Pss_Anon:"))
    except (OSError, StopIteration, ValueError):
        return 0


@functools.lru_cache(maxsize=1)
def _trusted() -> tuple[int, ...]:
    import pwd

    with suppress(KeyError):
        return (0, os.geteuid(), pwd.getpwnam(_SERVICE).pw_uid)
    return (0, os.geteuid())
