"""HTTP: metrics, health, the page and its API. Publishes snapshots, never collects."""

from wslgpud.serve.endpoints import routes
from wslgpud.serve.exposition import Publisher
from wslgpud.serve.http import Request, Response, Route
from wslgpud.serve.server import LocalApi, ServeError, Server

__all__ = ["LocalApi", "Publisher", "Request", "Response", "Route", "ServeError", "Server", "routes"]
