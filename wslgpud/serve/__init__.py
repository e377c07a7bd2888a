"""HTTP: metrics, health, the page and its API. Serves snapshots, never reads a source."""

from wslgpud.serve.publisher import Publisher
from wslgpud.serve.router import Request, Response, Route
from wslgpud.serve.routes import base_routes
from wslgpud.serve.server import HttpServer, LocalApi, ServeError

__all__ = ["HttpServer", "LocalApi", "Publisher", "Request", "Response", "Route", "ServeError", "base_routes"]
