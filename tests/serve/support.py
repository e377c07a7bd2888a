"""A small machine, and ways to speak to a server that a well-behaved client library lacks."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
from dataclasses import dataclass, replace

from tests.support.daemons import PATIENCE_SECONDS
from wslgpud.metrics import MetricSpec
from wslgpud.model import EMPTY, GpuSample, Reading, Sample, Snapshot, SourceReport
from wslgpud.sampling.observation import observation_of
from wslgpud.serve import HttpServer, Publisher, publisher
from wslgpud.serve.listener import Deadlines
from wslgpud.serve.status import TickState, status
from wslgpud.verdict import decide
from wslgpud.words import translator

AVAILABLE = MetricSpec("memory_available_bytes", "gauge", "bytes", "RAM left.")
FAULTS = MetricSpec("major_faults", "counter", "", "Pages read back from disk.")
GPU_USED = MetricSpec("gpu_memory_used_bytes", "gauge", "bytes", "VRAM used.", ("gpu", "uuid"))
GPU = MetricSpec("gpu", "info", "", "Which card it is.", ("gpu", "uuid", "name"))
CATALOGUE = (AVAILABLE, FAULTS, GPU_USED, GPU, *publisher.METRICS)


def document_of(latest, language="en", forecasts=(), incidents=()):
    """Return the status document of a snapshot, as the daemon words it."""
    if latest is None:
        return status(None, translator(language))
    state = replace(latest, observation=observation_of(latest), forecasts=forecasts)
    return status(TickState(state, decide(forecasts, incidents), incidents), translator(language))


class HandClock:
    """Time that moves only when a test says so."""

    def __init__(self, mono=1000.0, wall=1_800_000_000.0):
        self._mono, self._wall = mono, wall

    def mono(self):
        return self._mono

    def wall(self):
        return self._wall

    def advance(self, seconds):
        self._mono += seconds
        self._wall += seconds


def snapshot(sequence=1, available=4_000_000_000, mono=1000.0, readings=()):
    """A machine with memory, one GPU, no PSI, and a source that is late."""
    memory = Sample((Reading(AVAILABLE, available), Reading(FAULTS, 17), *readings))
    card = ("0", "GPU-5070")
    gpu = Sample(
        (Reading(GPU_USED, 12 << 30, card), Reading(GPU, 1, (*card, "RTX 5070 Ti"))),
        gpus=(GpuSample(0, "GPU-5070", "RTX 5070 Ti", 16 << 30, 12 << 30),),
    )
    reports = (
        SourceReport("memory", "ok", memory, mono, 0.0002, last_success_wall=1_800_000_000.0),
        SourceReport("gpu", "ok", gpu, mono - 0.5, 0.004, last_success_wall=1_799_999_999.5),
        SourceReport("pressure", "absent", EMPTY, mono, 0.0001, "no /proc/pressure"),
        SourceReport("disk", "late", EMPTY, mono - 9, 9.0, "no answer for 9.0 s", failures_total=1),
    )
    return Snapshot(1_800_000_000.0, mono, sequence, reports, lateness_seconds=0.25)


@dataclass
class Running:
    """A server, its publisher and its port."""

    server: HttpServer
    publisher: Publisher
    port: int

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS)

    def raw(self, data, *, end=False):
        """Send bytes as they are and return all that comes until the server closes."""
        with self.connect() as sock:
            try:
                sock.sendall(data)
                if end:
                    sock.shutdown(socket.SHUT_WR)
            except TimeoutError:
                raise
            except OSError:
                pass  # it has closed already, perhaps after an answer
            return receive_all(sock)

    def ask(self, path="/", method="GET", headers=None, context=None, body=None):
        """Ask as a client library does; return the response with its body in ``.text``."""
        if context is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        else:
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS, context=context)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            response.data = response.read()
            return response
        finally:
            connection.close()


def receive_all(sock):
    """Return all that comes until the connection ends, in whatever way."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while chunk := sock.recv(65536):
            received += chunk
    return received


def receive_answer(sock):
    """Return one whole answer: head and body come in pieces of any size."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _more(sock)
    head, _, body = received.partition(b"\r\n\r\n")
    missing = int(re.search(rb"content-length: (\d+)", head)[1]) - len(body)
    while missing > 0:
        received += (chunk := _more(sock))
        missing -= len(chunk)
    return received


def _more(sock):
    """Return the next data; the end of the connection is an error."""
    if not (chunk := sock.recv(65536)):
        raise ConnectionError("the server has ended the connection before its answer was whole")
    return chunk


@contextlib.contextmanager
def answered(running, question):
    """Yield a connection on which a question was answered; an impatient server may cut a slow machine's."""
    while True:
        with running.connect() as sock:
            try:
                sock.sendall(question)
                assert receive_answer(sock).startswith(b"HTTP/1.1 200 ")
            except ConnectionError:
                continue
            yield sock
            return


def said_by_the_server(caplog):
    """Return the server's log lines, without those of threads left by other tests."""
    return [r for r in caplog.records if r.name.startswith(("wslgpud.serve", "uvicorn", "asyncio"))]


def put(path, content):
    """Replace a file in one step, as tools that renew certificates do."""
    new = path.with_suffix(".new")
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    new.replace(path)


def issue(authority, folder):
    """Put a certificate for this machine into ``folder``; return it as PEM."""
    issued = authority.issue_cert("localhost", "127.0.0.1")
    put(folder / "key.pem", issued.private_key_pem.bytes())
    put(folder / "cert.pem", b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return issued.cert_chain_pems[0].bytes().decode().strip()


def is_cut(sock, drop=b""):
    """Wait until the server ends the connection, sending ``drop`` from time to time until then."""
    sock.settimeout(0.02 if drop else PATIENCE_SECONDS)
    while True:
        try:
            if drop:
                sock.sendall(drop)
            return sock.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            if not drop:
                raise


def wait_until(holds):
    """Wait for what must come; the suite's own timeout says when it never does."""
    while not holds():
        threading.Event().wait(0.02)


#: Short enough to wait for in a test.
IMPATIENT = Deadlines(head_seconds=0.3, idle_seconds=1, answer_seconds=0.5)
