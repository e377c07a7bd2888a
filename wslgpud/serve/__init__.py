"""HTTP: metrics, health, the page and its API. Publishes snapshots, never collects."""

from wslgpud.serve.endpoints import routes
from wslgpud.serve.http import Request, Response, Route
from wslgpud.serve.local import LocalApi
from wslgpud.serve.publisher import Publisher
from wslgpud.serve.server import ServeError, Server

__all__ = ["LocalApi", "Publisher", "Request", "Response", "Route", "ServeError", "Server", "routes"]
