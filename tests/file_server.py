"""A small HTTP server of files that does what a test asks: ranges, cuts, faults, redirects."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """``files``: content by path. What was asked is in ``requests``, as (path, headers).

    ``cut_after``: the next replies break off after so many bytes each, in turn. ``statuses``:
    the next replies are these instead.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.pages: dict[str, object] = {}  # JSON by path
        self.redirects: dict[str, str] = {}
        self.has_ranges = True
        self.etag: str | None = '"1"'
        self.cut_after: list[int] = []
        self.statuses: list[int] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.url = ""

    @property
    def ranges(self) -> list[str | None]:
        return [headers.get("Range") for _, headers in self.requests]


@contextmanager
def file_server() -> Iterator[FileServer]:
    served = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            served.requests.append((path, dict(self.headers)))
            if served.statuses:
                self.send_error(served.statuses.pop(0))
            elif path in served.redirects:
                self.send_response(302)
                self.send_header("Location", served.redirects[path])
                self.end_headers()
            elif path in served.pages:
                self._send(200, json.dumps(served.pages[path]).encode(), {})
            elif path in served.files:
                self._send_file(served.files[path])
            else:
                self.send_error(404)

        def _send_file(self, data: bytes) -> None:
            headers = {} if served.etag is None else {"ETag": served.etag}
            found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            is_same = self.headers.get("If-Range") == served.etag
            if not (found and served.has_ranges and is_same):
                self._send(200, data, headers)
                return
            start = int(found[1])
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self._send(206, data[start:], headers)

        def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data[: served.cut_after.pop(0)] if served.cut_after else data)

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
