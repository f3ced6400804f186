"""The whole program once through, as an app starts it; `make test-bundle` runs it frozen."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import ferrum_local
from ferrum_local.server.exit_codes import ExitCode
from tests.audio.conftest import TINY
from tests.audio.sounds import word_errors, words
from tests.audio.test_transcriptions import form
from tests.conftest import MINILM, SMOLLM2, VOICE
from tests.contract.sidecar import (
    PATIENCE_S,
    SMALL,
    App,
    Sidecar,
    adopting_orphans,
    exit_code_of,
    post,
    says_hello,
    sidecar,
    wait_healthy,
)
from tests.server_process import CLIENT_TIMEOUT_S, ChatStream, is_refused
from tests.smoke.conftest import Program

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="processes and signals as on POSIX"),
    pytest.mark.skipif(
        not all(path.exists() for path in (SMOLLM2, MINILM, TINY, VOICE)),
        reason="the starter models are not fetched",
    ),
]
LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux")
TEXT = "The train to London leaves in a few minutes."


def run(program: Program, place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*program.command, *arguments], cwd=place, env=program.env, capture_output=True,
        encoding="utf-8", stdin=subprocess.DEVNULL, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def everything(program: Program, place: Path, steady_voice: Path) -> Iterator[Sidecar]:
    """A server with a model of each kind, that is ready."""
    models = ["--embedding-model", str(MINILM), "--whisper-model", str(TINY),
              "--voice", str(steady_voice)]  # fmt: skip
    with sidecar(
        place / "log", *SMALL, *models, program=program.command, env=program.env, cwd=place
    ) as server:
        server.wait_event("ready")
        yield server


def port_of(server: Sidecar) -> int:
    port: int = server.events[-1]["port"]
    return port


def post_bytes(server: Sidecar, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=CLIENT_TIMEOUT_S)
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        data = response.read()
        assert response.status == 200, data
        return data
    finally:
        connection.close()


def test_the_version_and_the_help(program: Program, place: Path) -> None:
    done = run(program, place, "--version")
    assert (done.stdout, done.stderr) == (f"ferrum-local {ferrum_local.__version__}\n", "")
    assert "serve" in run(program, place, "--help").stdout


def test_life_02_helpers_of_pythons_own_are_not_taken_for_commands(
    program: Program, place: Path
) -> None:
    """As multiprocessing starts its resource tracker from a frozen program."""
    if not program.is_bundle:
        pytest.skip("Python itself is not frozen")
    reader, writer = os.pipe()
    os.close(writer)
    code = f"from multiprocessing.resource_tracker import main;main({reader})"
    done = subprocess.run(
        [*program.command, "-B", "-S", "-I", "-c", code], cwd=place, env=program.env,
        pass_fds=[reader], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    os.close(reader)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_life_03_chat_and_an_answer_in_json(everything: Sidecar) -> None:
    assert says_hello(port_of(everything))
    schema = {"type": "object", "properties": {"red": {"type": "boolean"}}, "required": ["red"],
              "additionalProperties": False}  # fmt: skip
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Is blood red?"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    }
    status, reply = post(port_of(everything), "/v1/chat/completions", body)
    assert status == 200
    assert list(json.loads(reply["choices"][0]["message"]["content"])) == ["red"]


def test_embeddings(everything: Sidecar) -> None:
    body = {"input": ["a cat", "a kitten", "a motorway"]}
    status, reply = post(port_of(everything), "/v1/embeddings", body)
    assert status == 200
    cat, kitten, motorway = (np.array(item["embedding"]) for item in reply["data"])
    assert cat @ kitten > cat @ motorway


def test_speech_is_heard_as_it_was_said(everything: Sidecar) -> None:
    spoken = post_bytes(
        everything, "/v1/audio/speech", json.dumps({"input": TEXT}).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    body, headers = form({}, spoken, "a.mp3")
    heard = json.loads(post_bytes(everything, "/v1/audio/transcriptions", body, headers))["text"]
    assert word_errors(words(TEXT), words(heard)) <= 2, heard


def test_life_01_a_native_crash_is_survived(everything: Sidecar) -> None:
    port = port_of(everything)
    everything.worker().send_signal(signal.SIGABRT)
    assert everything.wait_event("restarting")["reason"] == "SIGABRT"
    assert set(wait_healthy(port)) <= {200, 503}
    everything.wait_event("ready")
    assert says_hello(port)


def test_sigterm_lets_the_running_answer_end(program: Program, place: Path, tmp_path: Path) -> None:
    with sidecar(
        tmp_path / "log", *SMALL, program=program.command, env=program.env, cwd=place
    ) as server:
        server.wait_event("ready")
        port = port_of(server)
        stream = ChatStream(port, "Count.", max_tokens=40, ignore_eos=True)
        stream.read_until('"content"')
        server.process.terminate()
        *chunks, done = stream.read_rest()
        assert done == "[DONE]"
        assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "length"
        assert server.wait() == ExitCode.STOPPED
        assert server.read_to_end()[-2:] == ["draining", "exited"]
        assert is_refused(port)


@LINUX_ONLY
def test_life_01_a_killed_parent_takes_the_program_along(
    program: Program, place: Path, tmp_path: Path
) -> None:
    files = ["--ready-file", str(place / "ready"), "--token-file", str(place / "token")]
    with adopting_orphans():
        app = App(
            tmp_path / "log", *SMALL, *files, "--exit-with-parent", stdin="DEVNULL",
            program=program.command, env=program.env, cwd=place,
        )  # fmt: skip
        try:
            ready = app.wait_event("ready")
            (worker,) = psutil.Process(ready["pid"]).children()
            app.kill()
            assert exit_code_of(ready["pid"]) == ExitCode.STOPPED
            assert not psutil.pid_exists(worker.pid)
            assert is_refused(ready["port"])
            assert not {"ready", "token"} & set(os.listdir(place))
        finally:
            app.close()
