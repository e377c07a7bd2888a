"""Which deadline a client has at each step of a connection."""

from __future__ import annotations

from tests.serve.support import receive_all, receive_answer, wait_until
from wslgpud.serve.listener import Connection, Deadlines

HEAD, IDLE, ANSWER = 1.0, 2.0, 3.0


def test_a_head_an_answer_and_a_pause_have_their_own_deadlines(serve, monkeypatch):
    limits = []
    monkeypatch.setattr(Connection, "_set_deadline", lambda _, seconds: limits.append(seconds))
    running = serve(deadlines=Deadlines(HEAD, IDLE, ANSWER))
    with running.connect() as client:
        client.sendall(b"GET /-/ready HTTP/1.1\r\n")
        client.sendall(b"Host: localhost\r\n\r\n")
        receive_answer(client)
        wait_until(lambda: limits[-1] == IDLE)
        client.sendall(b"GET /-/ready HTTP/1.1\r\n")
        wait_until(lambda: limits[-1] == HEAD)
        client.sendall(b"Host: localhost\r\nConnection: close\r\n\r\n")
        receive_all(client)
    wait_until(lambda: running.server._listener.connections == 0)

    assert limits == [HEAD, None, ANSWER, IDLE, HEAD, None, ANSWER, None]
