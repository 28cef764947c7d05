"""A gate before a server: requests pass through it, and one of them can be held for as long as a test wants."""

from __future__ import annotations

import http.client
import threading
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import Self

_OF_ONE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


class Gate:
    """A proxy at an address of its own.

    What it holds it never passes on: a client that is killed meanwhile has sent nothing.

    Args:
        server: Address of the server behind it.
    """

    def __init__(self, server: str) -> None:
        self._behind = urllib.parse.urlsplit(server).netloc
        self._wanted: Callable[[str, str], bool] = lambda method, path: False
        self._closed = threading.Event()
        self._held: list[str] = []
        self._lock = threading.Lock()
        gate = self

        class Handler(_Handler):
            owner = gate

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def held(self) -> list[str]:
        """Paths of the requests that are held."""
        with self._lock:
            return list(self._held)

    def hold(self, wanted: Callable[[str, str], bool]) -> None:
        """Hold requests from now on.

        Args:
            wanted: Which, by method and path. Asked once about each request, in the order in which they come.
        """
        with self._lock:
            self._wanted, self._held = wanted, []

    def holds(self, method: str, path: str) -> bool:
        """Whether a request is to be held; if so, comes back when the gate is closed."""
        with self._lock:
            if not self._wanted(method, path):
                return False
            self._held.append(path)
        self._closed.wait()
        return True

    def passed_on(self, method: str, path: str, headers: dict[str, str], body: bytes) -> http.client.HTTPResponse:
        """What the server answers."""
        connection = http.client.HTTPConnection(self._behind)
        connection.request(method, path, body, headers)
        return connection.getresponse()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Gate

    def _pass(self) -> None:
        body = self._body()
        if self.owner.holds(self.command, self.path):
            self.close_connection = True
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_CONNECTION}
        with self.owner.passed_on(self.command, self.path, headers, body) as answer:
            content = answer.read()
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_ONE_CONNECTION:
                    self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _pass

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""
