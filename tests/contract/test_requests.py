"""Cancelling by id, and the integrity check, over HTTP."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import openai
import pytest

from tests.conftest import SMOLLM2, RunningServer, serve

LONG = [{"role": "user", "content": "Count from one to a thousand."}]


@pytest.fixture(scope="module")
def debug_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A small server with --debug, whose prompt cache is on disk too."""
    yield from serve(
        "--model", str(SMOLLM2), "--ctx-size", "512", "--slots", "2", "--debug",
        "--prompt-cache-dir", str(tmp_path_factory.mktemp("prompts")),
    )  # fmt: skip


def call(method: str, url: str) -> tuple[int, dict[str, object]]:
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_stream_is_cancelled_by_the_id_of_its_chunks(debug_server: RunningServer) -> None:
    stream = debug_server.client().chat.completions.create(
        model="default",
        messages=LONG,
        stream=True,
        extra_body={"ignore_eos": True},  # type: ignore[arg-type]
    )
    first = next(stream)
    status, body = call("DELETE", f"{debug_server.url}/v1/requests/{first.id}")
    assert (status, body["cancelled"]) == (200, True)
    with pytest.raises(openai.APIError, match="cancelled"):
        for _ in stream:
            pass
    status, body = call("DELETE", f"{debug_server.url}/v1/requests/{first.id}")
    assert status == 404
    assert body["error"]["code"] == "request_not_found"  # type: ignore[index]


def test_an_unstreamed_request_is_cancelled_by_its_own_request_id(
    debug_server: RunningServer,
) -> None:
    outcome: list[BaseException] = []

    def ask() -> None:
        try:
            debug_server.client().chat.completions.create(
                model="default", messages=LONG, extra_body={"ignore_eos": True},  # type: ignore[arg-type]
                extra_headers={"X-Request-Id": "mine-1"},
            )  # fmt: skip
        except openai.APIStatusError as error:
            outcome.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    url = f"{debug_server.url}/v1/requests/mine-1"
    while thread.is_alive() and call("DELETE", url)[0] == 404:
        pass  # not begun yet
    thread.join(30)
    assert isinstance(outcome[0], openai.APIStatusError)
    assert outcome[0].status_code == 499


def test_the_books_agree_after_it_all(debug_server: RunningServer) -> None:
    assert call("GET", f"{debug_server.url}/debug/check") == (200, {"status": "ok"})


def test_the_check_is_not_there_without_debug(server: RunningServer) -> None:
    assert call("GET", f"{server.url}/debug/check")[0] == 404


def test_prediction_is_taken_in_both_forms_and_refused_in_others(server: RunningServer) -> None:
    client = server.client()
    for content in ("one two", [{"type": "text", "text": "one two"}]):
        answer = client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": "Count."}], max_tokens=4,
            prediction={"type": "content", "content": content},  # type: ignore[typeddict-item]
        )  # fmt: skip
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= 4
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": "Count."}], max_tokens=4,
            prediction={"type": "content", "content": 5},  # type: ignore[typeddict-item]
        )  # fmt: skip
    assert refused.value.param == "prediction.content"
