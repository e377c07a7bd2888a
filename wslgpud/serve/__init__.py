"""HTTP: metrics, health, the page and its API. Publishes snapshots, never collects."""

from wslgpud.serve.endpoints import routes
from wslgpud.serve.exposition import Publisher
from wslgpud.serve.http import Request, Response, Route
from wslgpud.serve.server import HttpServer, LocalApi, ServeError

__all__ = ["HttpServer", "LocalApi", "Publisher", "Request", "Response", "Route", "ServeError", "routes"]
