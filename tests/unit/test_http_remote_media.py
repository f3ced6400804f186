"""What is fetched for a request, and everything that is not: against a server on this machine.

The fetcher is told here that one loopback address may be reached, and what names mean.
"""

from __future__ import annotations

import http.server
import ipaddress
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.http.public_addresses import is_public
from ferrum_local.http.remote_media import MediaRefused, RemoteMedia, resolve_addresses

PNG = b"\x89PNG\r\n\x1a\n" + bytes(1000)
LIMIT = 4096


class Host(http.server.BaseHTTPRequestHandler):
    """``/status``, ``/to?URL``, ``/loop``, ``/large``, ``/endless`` and so on; else a picture."""

    protocol_version = "HTTP/1.1"
    gone = threading.Event()  # set when a test is over

    def do_GET(self) -> None:
        self.server.seen.append((self.path, dict(self.headers)))  # type: ignore[attr-defined]
        what, _, argument = self.path[1:].partition("?")
        answer: Callable[[str], None] = getattr(self, f"say_{what}", self.say_picture)
        answer(argument)

    def head(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Connection": "close", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.close_connection = True

    def say_picture(self, kind: str) -> None:
        self.head(200, Content_Type=kind or "image/png", Content_Length=str(len(PNG)))
        self.wfile.write(PNG)

    def say_to(self, url: str) -> None:
        self.head(302, Location=unquote(url), Content_Length="0")

    def say_loop(self, _argument: str) -> None:
        self.head(307, Location="/loop", Content_Length="0")

    def say_nowhere(self, _argument: str) -> None:
        self.head(301, Content_Length="0")

    def say_missing(self, _argument: str) -> None:
        self.head(404, Content_Length="0")

    def say_large(self, _argument: str) -> None:
        self.head(200, Content_Type="image/png", Content_Length=str(10**12))

    def say_endless(self, _argument: str) -> None:
        self.head(200, Content_Type="image/png")
        try:
            while not self.gone.is_set():
                self.wfile.write(bytes(65536))
        except OSError:
            pass  # the fetcher left, as it should

    def say_short(self, _argument: str) -> None:
        self.head(200, Content_Type="image/png", Content_Length="2000")
        self.wfile.write(PNG)

    def say_packed(self, _argument: str) -> None:
        self.head(200, Content_Type="image/png", Content_Encoding="gzip", Content_Length="0")

    def say_trickle(self, where: str) -> None:
        """A byte now and then, in the head or in the body, for ever."""
        if where == "body":
            self.head(200, Content_Type="image/png")
        try:
            while not self.gone.wait(0.02):
                self.wfile.write(b"x")
                self.wfile.flush()
        except OSError:
            pass

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Host)
        self.seen: list[tuple[str, dict[str, str]]] = []
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves, or does not trust us, is what tests do."""


@pytest.fixture
def host() -> Iterator[Server]:
    yield from running(Server())


def running(server: Server) -> Iterator[Server]:
    Host.gone.clear()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    Host.gone.set()
    server.shutdown()
    thread.join()
    server.server_close()


class Names:
    """A resolver that knows what tests tell it, and counts how often it was asked."""

    def __init__(self, **addresses: Sequence[str]) -> None:
        self.addresses = {"pictures.example": ("127.0.0.1",), **addresses}
        self.asked: list[str] = []

    def __call__(self, name: str, port: int, timeout_s: float) -> Sequence[str]:
        self.asked.append(name)
        if name in self.addresses:
            return self.addresses[name]
        return resolve_addresses(name, port, timeout_s)


def fetcher(
    names: Names | None = None, *, timeout_s: float = 10.0, **options: object
) -> RemoteMedia:
    return RemoteMedia(
        max_bytes=LIMIT, timeout_s=timeout_s, resolve=names or Names(),
        is_allowed=lambda address: address == "127.0.0.1" or is_public(address),
        **options,  # type: ignore[arg-type]
    )  # fmt: skip


def refusal(url: str, **options: object) -> str:
    with pytest.raises(MediaRefused) as caught:
        fetcher(**options).fetch(url)  # type: ignore[arg-type]
    return str(caught.value)


def at(host: Server, path: str) -> str:
    return f"http://pictures.example:{host.server_port}{path}"


def test_a_picture_is_fetched_and_the_host_learns_nothing_of_us(host: Server) -> None:
    assert fetcher().fetch(at(host, "/a picture.png".replace(" ", "%20"))) == PNG
    ((path, headers),) = host.seen
    assert path == "/a%20picture.png"
    assert set(headers) == {"Host", "User-Agent", "Accept", "Accept-Encoding", "Connection"}
    assert headers["Host"] == f"pictures.example:{host.server_port}"


def test_redirects_are_followed_and_each_is_judged_anew(host: Server) -> None:
    assert fetcher().fetch(at(host, "/to?/to?/picture")) == PNG
    for secret in (
        "http://169.254.169.254/latest/meta-data/", "http://[::1]/", "http://10.0.0.1/",
        "http://127.0.0.2/", "http://0/", "http://2130706434/", "http://[::ffff:10.0.0.1]/",
    ):  # fmt: skip
        assert refusal(at(host, f"/to?{secret}")) == "is not on a public host"
    assert "not an http" in refusal(at(host, "/to?file:///etc/passwd"))
    assert "redirects" in refusal(at(host, "/loop"))
    assert "nowhere" in refusal(at(host, "/nowhere"))


def test_the_connection_goes_to_the_address_that_was_judged(host: Server) -> None:
    """A name that means something else each time it is asked is asked once."""
    names = Names()
    assert fetcher(names).fetch(at(host, "/picture")) == PNG
    assert names.asked == ["pictures.example"]


def test_one_private_address_among_public_ones_is_enough(host: Server) -> None:
    names = Names(**{"both.example": ("127.0.0.1", "192.168.1.1")})
    url = f"http://both.example:{host.server_port}/picture"
    assert refusal(url, names=names) == "is not on a public host"
    assert host.seen == []


def test_this_machine_is_not_public_by_default(host: Server) -> None:
    for name in ("127.0.0.1", "localhost", "[::1]", "0x7f.1", "127.1"):
        with pytest.raises(MediaRefused, match="not on a public host|not known"):
            RemoteMedia(max_bytes=LIMIT).fetch(f"http://{name}:{host.server_port}/picture")
    assert host.seen == []


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/missing", "status 404"),
        ("/large", "larger than 4096"),
        ("/endless", "larger than 4096"),
        ("/short", "cannot be fetched"),
        ("/packed", "compressed"),
        ("/picture?text/html", "is text/html, not image"),
        ("/picture?application/json", "is application/json"),
    ],
)
def test_what_is_no_picture_or_too_much_is_refused(host: Server, path: str, said: str) -> None:
    assert said in refusal(at(host, path))


def test_a_picture_without_a_type_is_judged_by_who_decodes_it(host: Server) -> None:
    assert fetcher().fetch(at(host, "/picture?application/octet-stream")) == PNG


@pytest.mark.parametrize("where", ["head", "body"])
def test_sec_06_a_host_that_trickles_is_given_up(host: Server, where: str) -> None:
    assert "took longer" in refusal(at(host, f"/trickle?{where}"), timeout_s=0.15)


def test_a_name_that_is_never_resolved_is_given_up() -> None:
    def never(_name: str, _port: int, _timeout_s: float) -> Sequence[str]:
        raise TimeoutError

    media = RemoteMedia(max_bytes=LIMIT, resolve=never)
    with pytest.raises(MediaRefused, match="host that is not known"):
        media.fetch("http://slow.example/")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://pictures.example/a", "not an http"),
        ("http://ada:secret@pictures.example/a", "user name or password"),
        ("http://ada@pictures.example/a", "user name or password"),
        ("http:///a", "names no host"),
        ("http://pictures.example:0/a", "names no host"),
        ("http://pictures.example:99999/a", "is not a URL"),
        ("http://pictures.example\\@10.0.0.1/a", "a character that no URL has"),
        ("http://pictures.example/a\r\nHost: b", "a character that no URL has"),
        ("http://pictures.example/a b", "a character that no URL has"),
        ("http://[::1/a", "is not a URL"),
        ("http://" + "a" * 70 + ".example/", "is not a URL"),
        ("http://pictures.example/" + "a" * 3000, "longer than"),
    ],
)
def test_urls_that_could_mean_two_things_are_refused(url: str, said: str) -> None:
    assert said in refusal(url)


@given(st.text(max_size=60))
def test_any_text_is_refused_or_has_a_host_that_is_judged(text: str) -> None:
    asked: list[str] = []

    def nobody(name: str, _port: int, _timeout_s: float) -> Sequence[str]:
        asked.append(name)
        return ("10.0.0.1",)

    media = RemoteMedia(max_bytes=LIMIT, resolve=nobody)
    with pytest.raises(MediaRefused):
        media.fetch(f"http://{text}")
    assert all(name and name.isascii() for name in asked)


def test_over_tls_the_certificate_must_be_that_of_the_name(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    pem = tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", pem, "-out", tmp_path / "crt", "-days", "2",
         "-subj", "/CN=pictures.example", "-addext", "subjectAltName=DNS:pictures.example"],
        check=True, capture_output=True,
    )  # fmt: skip
    pem.write_bytes(pem.read_bytes() + (tmp_path / "crt").read_bytes())
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(pem)
    theirs = ssl.create_default_context(cafile=str(tmp_path / "crt"))
    names = Names(**{"other.example": ("127.0.0.1",)})
    for host in running(Server(ours)):
        port = host.server_port
        media = fetcher(names, tls=theirs)
        assert media.fetch(f"https://pictures.example:{port}/picture") == PNG
        with pytest.raises(MediaRefused, match="certificate is not valid"):
            media.fetch(f"https://other.example:{port}/picture")
        with pytest.raises(MediaRefused, match="without it"):
            media.fetch(f"https://pictures.example:{port}/to?http://pictures.example/")
        with pytest.raises(MediaRefused, match="certificate is not valid"):
            fetcher(names).fetch(f"https://pictures.example:{port}/picture")


# Addresses


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "93.184.216.34", "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808",
     "2002:808:808::1"],
)  # fmt: skip
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.9.1", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.1",
        "192.168.0.1", "169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192",
        "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1",
        "240.0.0.1", "255.255.255.255", "168.63.129.16",
        "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "fc00::1", "fd00:ec2::254",
        "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "64:ff9b:1::1", "100::1",
        "", "pictures.example", "127.1", "0x7f000001",
    ],
)  # fmt: skip
def test_addresses_of_this_machine_its_networks_and_its_cloud(address: str) -> None:
    assert not is_public(address)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_alike_in_every_form(ip: ipaddress.IPv4Address) -> None:
    tail = f"{int(ip) >> 16:x}:{int(ip) & 0xFFFF:x}"
    for written in (f"::ffff:{tail}", f"64:ff9b::{tail}", f"2002:{tail}::1"):
        assert is_public(written) == is_public(str(ip))
