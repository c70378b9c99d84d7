"""Server of a page that follows a running search: for this machine alone, and only for who knows its address.

The address has a random token. Requests without it are refused, and so are other methods than GET and other paths.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from mirage_formal.report.page.html import watch_page


class WatchServer(ThreadingHTTPServer):
    """Server on 127.0.0.1 of one page, and of the values that it shows as JSON.

    Sound: it writes nothing, and reads no path that a request names.

    Args:
        title: Title of the page.
        read: Reader of the values.
        port: Port; 0 is any free one.

    Attributes:
        address: Address of the page, with the token.
    """

    daemon_threads = True

    def __init__(self, title: str, read: Callable[[], Sequence[msgspec.Struct]], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.token = secrets.token_urlsafe(24)
        self.address = f"http://127.0.0.1:{self.server_port}/?token={self.token}"
        self._page = watch_page(title).encode()
        self._read, self._alone = read, Lock()

    def content(self, path: str) -> tuple[str, bytes] | None:
        """Return the type and the bytes of a path; None if there is no such path."""
        if path == "/":
            return "text/html; charset=utf-8", self._page
        if path == "/progress.json":
            with self._alone:
                return "application/json", msgspec.json.encode(self._read())
        return None


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    timeout = 20.0

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        given = parse_qs(asked.query).get("token", [""])[0]
        if not secrets.compare_digest(given.encode("utf-8", "replace"), self.server.token.encode()):
            return self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"the address has no token, or another one\n")
        found = self.server.content(asked.path)
        if found is None:
            return self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"no such path\n")
        return self._answer(HTTPStatus.OK, *found)

    def _answer(self, status: HTTPStatus, kind: str, data: bytes) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(data)), "Cache-Control": "no-store"}
        for name, value in (headers | {"Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def version_string(self) -> str:
        """Return no version: who asks learns nothing of this machine."""
        return "mirage_formal"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: requests have the token."""
