"""Runs in a network that leads nowhere: a whole server with ``--offline``, used by every route.

Started by ``test_offline``, as root of a network namespace of its own. Prints one JSON object: what
was answered, every address that any socket of the namespace was seen with, and how many packets
the kernel had no route for.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import socket
import struct
import subprocess
import sys
import threading
import wave
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

TIMEOUT_S = 120.0
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_TABLES = ("tcp", "tcp6", "udp", "udp6", "raw", "raw6")


def bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16sh14x", b"lo", 0))
        flags = struct.unpack("16sh14x", request)[1] | _IFF_UP
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags))


def addresses() -> Iterator[str]:
    """Local and remote addresses of all sockets in the namespace, from the kernel's tables."""
    for table in _TABLES:
        try:
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except FileNotFoundError:  # no IPv6 here
            continue
        for line in lines:
            for field in line.split()[1:3]:
                number = bytes.fromhex(field.partition(":")[0])
                words = [number[i : i + 4][::-1] for i in range(0, len(number), 4)]
                yield socket.inet_ntop(
                    socket.AF_INET if len(number) == 4 else socket.AF_INET6, b"".join(words)
                )


def n_without_route() -> int:
    """Packets and connections that would have left, had there been a way."""
    names, values = [
        line.split() for line in Path("/proc/net/snmp").read_text().splitlines()
        if line.startswith("Ip:")
    ]  # fmt: skip
    total = int(values[names.index("OutNoRoutes")])
    snmp6 = Path("/proc/net/snmp6")
    for line in snmp6.read_text().splitlines() if snmp6.exists() else ():
        if line.startswith("Ip6OutNoRoutes"):
            total += int(line.split()[1])
    return total


class Watch:
    """Looks at the kernel's tables as often as it can."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            self.seen.update(addresses())


def ask(port: int, path: str, body: bytes, kind: str = "application/json") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", path, body, {"Content-Type": kind})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def ask_json(port: int, path: str, **fields: object) -> tuple[int, bytes]:
    return ask(port, path, json.dumps(fields).encode())


def use_everything(port: int) -> dict[str, object]:
    """Chat, embed, speak, and transcribe what was spoken."""
    said, spoken = ask_json(
        port, "/v1/audio/speech", input="Ask not what your country can do for you.",
        response_format="wav",
    )  # fmt: skip
    with wave.open(BytesIO(spoken)) as recording:
        n_frames = recording.getnframes()
    form = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        + spoken + b"\r\n--b--\r\n"
    )  # fmt: skip
    heard, transcript = ask(
        port, "/v1/audio/transcriptions", form, "multipart/form-data; boundary=b"
    )
    chatted, answer = ask_json(
        port, "/v1/chat/completions", max_tokens=4,
        messages=[{"role": "user", "content": "Say hello."}],
    )  # fmt: skip
    embedded, vectors = ask_json(port, "/v1/embeddings", input="hello")
    return {
        "statuses": [said, heard, chatted, embedded],
        "n_frames": n_frames,
        "transcript": json.loads(transcript)["text"],
        "answer": json.loads(answer)["choices"][0]["message"]["content"],
        "dimensions": len(json.loads(vectors)["data"][0]["embedding"]),
    }


def main() -> None:
    command = sys.argv[1:]
    bring_up_loopback()
    # The instruments first: they must see what they are to exclude.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            pass
    noticed = n_without_route()
    with Watch() as watch:
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert server.stdout is not None
        try:
            ready = json.loads(server.stdout.readline())
            found = use_everything(ready["port"])
        finally:
            server.terminate()
            exit_code = server.wait(TIMEOUT_S)
    found |= {
        "exit_code": exit_code,
        "addresses": sorted(watch.seen),
        "noticed_by_instruments": noticed,
        "n_without_route": n_without_route() - noticed,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
