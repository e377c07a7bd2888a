"""A page of another origin, in a real browser, tries all ways to the daemon and gets nothing."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.page.stage import trace

TRIES = {
    "fetch": "fetch(URL).then(a => a.text())",
    "fetch with passwords": "fetch(URL, {mode: 'no-cors', credentials: 'include'}).then(a => a.type)",
    "fetch with a header of its own": "fetch(URL, {headers: {'X-Own': '1'}}).then(a => a.text())",
    "image": "loaded('img', {src: URL})",
    "script": "loaded('script', {src: URL})",
    "module": "loaded('script', {src: URL, type: 'module'})",
    "style": "loaded('link', {rel: 'stylesheet', href: URL})",
    "object": "loaded('object', {data: URL})",
    "video": "new Promise((yes, no) => { const v = document.createElement('video'); v.onerror = no;"
    " v.onloadedmetadata = yes; v.src = URL; })",
    "events": "new Promise((yes, no) => { const e = new EventSource(URL); e.onopen = yes;"
    " e.onerror = () => { e.close(); no(); }; })",
    "websocket": "new Promise((yes, no) => { const w = new WebSocket(URL.replace('http', 'ws'));"
    " w.onopen = yes; w.onerror = no; })",
    "post": "fetch(URL, {method: 'POST', mode: 'no-cors', body: 'x'}).then(a => a.type)",
    "beacon": "Promise.resolve(navigator.sendBeacon(URL, 'x'))",
    "frame": "loaded('iframe', {src: URL})",
    "form": "new Promise(yes => { const f = document.createElement('iframe'); f.name = 'into';"
    " document.body.append(f); f.onload = yes; const form = document.createElement('form');"
    " Object.assign(form, {action: URL, target: 'into', method: 'get'}); document.body.append(form);"
    " form.submit(); })",
    "prefetch": "loaded('link', {rel: 'prefetch', href: URL})",
}
LOADED = """
const loaded = (kind, facts) => new Promise((yes, no) => {
  const made = Object.assign(document.createElement(kind), facts);
  made.onload = () => yes('loaded'); made.onerror = () => no('error');
  document.body.append(made);
});
"""


class _Stranger(BaseHTTPRequestHandler):
    """Serves an empty page, as any program on another port may."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>stranger</title><body>")

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def stranger():
    """Return the port of another server on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Stranger)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


# "localhost" and 127.0.0.1 are different sites to a browser, two ports of one of them the same site.
@pytest.mark.parametrize(
    ("site", "path"), [("localhost", "/api/v1/live"), ("127.0.0.1", "/metrics")], ids=["another site", "another port"]
)
def test_no_request_from_a_page_of_another_origin_is_answered(stage, look, stranger, site, path):
    page = look().page
    page.goto(f"http://{site}:{stranger}/")
    seen = []
    page.context.on("response", lambda answer: seen.append((answer.url, answer.status)))

    got = {
        name: page.evaluate(
            f"async (URL) => {{ {LOADED} return await {does}.then(String, () => 'nothing'); }}",
            f"{stage.url}{path}?{number}",
        )
        for number, (name, does) in enumerate(TRIES.items())
    }

    told = {status for (route, status) in stage.server._app._counts if route == path}
    assert told == {403}
    assert stage.server._app._counts[path, 403] >= len(TRIES) - 2  # some never leave the browser
    assert {status for url, status in seen if url.startswith(stage.url)} <= {403}
    assert not any("wslgpud" in text for text in got.values())
    empty = {"nothing", "opaque", "loaded", "[object Event]", "true"}  # frames "load" an empty page
    assert set(got.values()) <= empty
    assert {got[kind] for kind in ("fetch", "image", "script", "module", "events", "websocket")} == {"nothing"}


@pytest.mark.parametrize("site", ["localhost", "127.0.0.1"], ids=["another site", "another port"])
def test_a_link_leads_to_the_page_and_the_page_works(stage, look, stranger, site):
    stage.play(trace("ram-leak_linear-1"), 60)
    page = look().page
    page.goto(f"http://{site}:{stranger}/")
    page.evaluate(
        "url => { const a = document.createElement('a'); a.href = url; a.textContent = 'go';"
        " document.body.append(a); }",
        f"{stage.url}/",
    )
    page.get_by_text("go").click()
    page.locator("main .resource").first.wait_for()

    assert stage.server._app._counts["/", 200] == 1
    assert stage.server._app._counts["/api/v1/live", 200] >= 1
    assert not any(status == 403 for _, status in stage.server._app._counts)


def test_a_link_from_elsewhere_into_the_api_is_refused(stage, look, stranger):
    page = look().page
    page.goto(f"http://localhost:{stranger}/")
    with page.expect_navigation():
        page.evaluate("url => { location = url; }", f"{stage.url}/api/v1/status")

    assert stage.server._app._counts["/api/v1/status", 403] == 1
    assert "another origin" in page.content()
