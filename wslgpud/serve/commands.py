"""Routes that change something: commands over the control socket, and the page's button *Seen*."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from wslgpud.active_runs import MAX_BYTES, AnnouncedRuns, TooManyRuns
from wslgpud.alerts.manager import ControlFile, Silence
from wslgpud.host import Clock
from wslgpud.model import StressResult
from wslgpud.security import safe_files
from wslgpud.security.shapes import LATEST_WALL, MalformedError, Shape, number, of, record, text, uint
from wslgpud.serve.api import Query, number_of
from wslgpud.serve.router import Problem, Request, Response, Route, dumps, packed
from wslgpud.store.records import MAX_RESULT_BYTES, stress_from_json

if TYPE_CHECKING:
    from wslgpud.brake.brake import Brake

#: size of a document that a person's command sends
MAX_COMMAND_BYTES = 4096
_SILENCE = record({"rule": text, "resource": text, "seconds": number})
_BRAKE = record({"job": uint, "command": of(str, ("resume", "stop").__contains__)})
_ACKNOWLEDGEMENT = record({"incident": uint, "seen_id": of(int)})


def seen_route(see: Callable[[int], bool]) -> Route:
    """Return the route by which the page tells that somebody has seen a lost job; ``see`` as in ``AlertManager``.

    The only thing that clients can do: whoever can read the page can do it, and it silences no warning.
    """

    def handler(request: Request) -> Response:
        Query(request.query, ())
        incident = number_of(request)
        try:
            if not see(incident):
                raise Problem(404, "no lost job of this incident waits to be seen")
        except OSError as error:
            raise Problem(503, f"that cannot be kept: {error.strerror}") from error
        return packed(request, dumps({"seen": incident}))

    return Route("/api/v1/seen/{incident}", handler, waits=True, method="POST")


def alert_routes(control: ControlFile, clock: Clock) -> list[Route]:
    """Return the routes of ``wslgpud alerts silence`` and ``ack``."""

    def silence(asked: Mapping[str, Any]) -> None:
        wall = clock.wall()
        until_wall = min(wall + asked["seconds"], LATEST_WALL)
        control.silence(Silence(asked["rule"], asked["resource"], until_wall), wall)

    def acknowledge(asked: Mapping[str, Any]) -> None:
        control.acknowledge(asked["incident"], asked["seen_id"])

    return [command("silence", _SILENCE, silence), command("acknowledge", _ACKNOWLEDGEMENT, acknowledge)]


def run_route(runs: AnnouncedRuns) -> Route:
    """Return the route by which any process announces its run, for as long as its connection lasts."""

    def handler(request: Request) -> Response:
        if request.peer is None:
            raise Problem(403, "runs are announced on the Unix socket")
        try:
            answer = runs.announce(request.peer, safe_files.parsed(request.body or b""))
        except ValueError as error:
            raise Problem(400, str(error)) from error
        except TooManyRuns as error:
            raise Problem(503, "too many runs are announced") from error
        return Response(200, dumps(answer), "application/json")

    return Route("/api/v1/run", handler, method="POST", max_body_bytes=MAX_BYTES)


def brake_route(brake: Brake) -> Route:
    """Return the route of ``wslgpud brake resume`` and ``stop``."""

    def act(asked: Mapping[str, Any]) -> None:
        if asked["job"] not in (job["job"] for job in brake.document()):
            raise LookupError("that job is not paused")
        brake.commands.append((asked["job"], asked["command"]))

    return command("brake", _BRAKE, act)


def stress_route(keep: Callable[[StressResult], None]) -> Route:
    """Return the route by which ``wslgpud stress`` hands over its run."""
    return command("stress-run", of(dict), lambda run: keep(stress_from_json(dict(run))), MAX_RESULT_BYTES)


def command(
    name: str, shape: Shape, act: Callable[[Mapping[str, Any]], None], max_bytes: int = MAX_COMMAND_BYTES
) -> Route:
    """Return the route by which root or the daemon's own user sends a document of a ``shape``."""

    def handler(request: Request) -> Response:
        try:
            document = safe_files.parsed(request.body or b"")
            if not shape(document):
                raise MalformedError("a field is missing or malformed")
            act(document)
        except ValueError as error:
            raise Problem(400, f"the document cannot be used: {error}") from error
        except LookupError as error:
            raise Problem(404, str(error)) from error
        except OSError as error:
            raise Problem(503, f"that cannot be kept: {error.strerror}") from error
        return Response(200, b"{}", "application/json")

    return Route(f"/api/v1/{name}", handler, method="POST", max_body_bytes=max_bytes, owner=True)
