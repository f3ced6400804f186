"""What a live server says of itself, and streams that are read, or left, byte by byte."""

from __future__ import annotations

import dataclasses
import http.client
import json
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from tests.contract.raw import TIMEOUT_S
from tests.fakes import wait_until

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
IDLE_S = 120.0  # for a server on a busy machine to end what was cancelled

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(url: str) -> Series:
    """``/metrics`` by series name and sorted labels, read with Prometheus' own parser."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_S) as response:
        text = response.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, tuple(sorted(labels.items()))]


@dataclasses.dataclass(frozen=True)
class Load:
    """What the engine is doing, and what it has done since it started."""

    running: int
    queued: int
    generated: int
    evaluated: int
    cancelled: int
    in_flight: int

    @property
    def is_idle(self) -> bool:
        return not (self.running or self.queued or self.in_flight)


def load(server: Any) -> Load:
    """Of the server's first model."""
    series = scrape(server.url)
    first: dict[str, int] = {}
    for (name, _labels), number in series.items():
        first.setdefault(name, int(number))
    return Load(
        running=first["ferrum_running_sequences"],
        queued=first["ferrum_queue_depth"],
        generated=first["ferrum_generated_tokens_total"],
        evaluated=first["ferrum_prompt_tokens_evaluated_total"],
        cancelled=first["ferrum_cancelled_total"],
        in_flight=first["ferrum_http_requests_in_flight"],
    )


def wait_idle(server: Any) -> Load:
    """Until no sequence runs or waits and no reply is open.

    Once idle, an engine cannot start again by itself: its counters have stopped.
    """
    wait_until(lambda: load(server).is_idle, IDLE_S)
    return load(server)


def health(server: Any) -> int:
    """The status of ``/health``."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    finally:
        connection.close()


class RawClient:
    """One HTTP/1.1 connection, driven by hand. Leaving the block closes it."""

    def __init__(self, server: Any) -> None:
        parts = urlsplit(server.url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT_S)
        self.file = self._socket.makefile("rb")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()
        self._socket.close()

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        version: str = "HTTP/1.1",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a request; nothing is read."""
        data = json.dumps(body).encode()
        lines = [
            f"POST {path} {version}",
            "Host: localhost",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
            *(f"{name}: {text}" for name, text in (headers or {}).items()),
        ]
        self._socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    def read_head(self) -> tuple[int, dict[str, str]]:
        """Status and headers (names in lower case) of the next reply."""
        status = int(self.file.readline().split()[1])
        headers: dict[str, str] = {}
        while (line := self.file.readline()) != b"\r\n":
            name, _, text = line.decode("latin-1").partition(":")
            assert name.lower() not in headers, f"{name} comes twice"
            headers[name.lower()] = text.strip()
        return status, headers

    def chunks(self) -> Iterator[bytes]:
        """The chunks of a chunked body, to the byte; ends after the last, empty one."""
        while True:
            size = int(self.file.readline().removesuffix(b"\r\n"), 16)
            data = self.file.read(size)
            assert len(data) == size, "the body breaks off within a chunk"
            assert self.file.readline() == b"\r\n"
            if not size:
                return
            yield data

    def is_closed_by_peer(self) -> bool:
        """Blocks until the server closes the connection or sends something more."""
        return self.file.read(1) == b""


def stream_events(server: Any, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The JSON events of one stream as they come; closing the iterator leaves the stream."""
    with RawClient(server) as client:
        client.post(path, {**body, "stream": True})
        status, _ = client.read_head()
        assert status == 200, client.file.read(2000)
        for chunk in client.chunks():
            if chunk.startswith(b"data: {"):
                yield json.loads(chunk.removeprefix(b"data: "))
