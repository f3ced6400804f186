"""A page in a real browser talks with a server; only its microphone is a file."""

from __future__ import annotations

import base64
import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from tests.audio.conftest import TINY
from tests.audio.sounds import as_wav, decoded, silence, word_errors, words
from tests.conftest import SMOLLM2, RunningServer, serve

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PAGE = Path(__file__).with_name("talk.html")
KEY = "page-key"
QUESTION = "Is it going to rain in the mountains tomorrow?"
TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser is here; one of these is needed: {', '.join(BROWSERS)}")
    return found


@pytest.fixture(scope="module")
def server(browser: str, steady_voice: Path) -> Iterator[RunningServer]:
    if not TINY.exists():
        pytest.skip("Whisper is not here: run `make setup`")
    yield from serve(
        "--model", f"smol={SMOLLM2}", "--ctx-size", "512", "--slots", "2", "--api-key", KEY,
        "--whisper-model", f"tiny={TINY}", "--voice", f"joe={steady_voice}",
    )  # fmt: skip


@contextmanager
def page_server(reports: queue.SimpleQueue[dict[str, Any]]) -> Iterator[str]:
    """Serves the page, and takes its report."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply("text/html; charset=utf-8", PAGE.read_bytes())

        def do_POST(self) -> None:
            reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._reply("text/plain", b"")

        def _reply(self, media_type: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


@contextmanager
def open_page(browser: str, url: str, microphone: Path, profile: Path) -> Iterator[Path]:
    """The browser without a window. Yields its log."""
    log = profile.with_suffix(".log")
    # The browser's own sandbox does not run as root, as which tests run in containers.
    sandbox = ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
    with log.open("w") as out:
        process = subprocess.Popen(
            [browser, "--headless=new", *sandbox, f"--user-data-dir={profile}", "--no-first-run",
             "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
             "--disable-background-networking", "--enable-logging=stderr",
             "--autoplay-policy=no-user-gesture-required", "--use-fake-ui-for-media-stream",
             "--use-fake-device-for-media-stream",
             f"--use-file-for-fake-audio-capture={microphone}%noloop", url],
            stdout=out, stderr=out,
        )  # fmt: skip
        try:
            yield log
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def test_a_page_speaks_and_hears_the_answer(
    browser: str, server: RunningServer, tmp_path: Path
) -> None:
    spoken = server.client(api_key=KEY).audio.speech.create(
        model="tts-1", voice="alloy", input=QUESTION, response_format="wav"
    )
    question = np.concatenate([silence(1.0), decoded(spoken.content), silence(2.0)])
    microphone = tmp_path / "question.wav"
    microphone.write_bytes(as_wav(question))

    reports: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    socket = quote(f"ws://{server.host}:{server.port}/v1/realtime", safe="")
    with page_server(reports) as page:
        url = f"{page}/?socket={socket}&key={KEY}"
        with open_page(browser, url, microphone, tmp_path / "profile") as log:
            try:
                report = reports.get(timeout=TIMEOUT_S)
            except queue.Empty:
                pytest.fail(f"the page reported nothing:\n{log.read_text()[-3000:]}")

    assert "error" not in report, report["error"]
    assert report["protocol"] == "realtime"
    assert word_errors(words(QUESTION), words(report["heard"])) <= 3, report["heard"]
    assert "input_audio_buffer.speech_stopped" in report["types"]
    assert words(report["said"])
    pcm = b"".join(base64.b64decode(piece) for piece in report["pcm"])
    answer = np.frombuffer(pcm, "<i2")
    assert len(answer) > 0.3 * 24_000
    assert np.abs(answer).max() > 1000  # it is no silence
