"""The protocol and its edges, over a real socket, with an engine that plays scripts.

What needs a model that listens, writes or speaks is in ``test_voice``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from urllib.request import urlopen

import openai
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from ferrum_local import HttpServer
from ferrum_local.errors import ContextOverflow, GenerationFailed
from ferrum_local.http.config import HttpConfig, RealtimeLimits
from ferrum_local.types import (
    ChatPrompt,
    FinishReason,
    InferenceRequest,
    Priority,
    Prompt,
    StreamChunk,
    ToolCallDelta,
)
from tests.fakes import ScriptedEngine, ScriptedStream, Step, chunk, wait_until
from tests.realtime.talk import Talk, closing, talking, without_repeats

KEY = "a-secret"
LIMITS = RealtimeLimits(max_sessions=3, max_message_bytes=2_500_000)
END = chunk("", finish=FinishReason.STOP)
STORY = (chunk("Once "), chunk("upon "), chunk("a time."), END)
NEVER = threading.Event()


class Place:
    """A server that plays ``engine.script``."""

    def __init__(self, server: HttpServer, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.url = server.url or ""
        self.ws_url = self.url.replace("http", "ws", 1) + "/v1/realtime"
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0)

    def play(self, *script: Step) -> None:
        self.engine.script = script

    def raw(self, query: str = "", **options: Any) -> ClientConnection:
        options.setdefault("additional_headers", {"Authorization": f"Bearer {KEY}"})
        return connect(self.ws_url + query, **options)

    def n_sessions(self) -> int:
        return sum(t.name.startswith("realtime-") for t in threading.enumerate())


def serving(
    limits: RealtimeLimits = LIMITS, engine: ScriptedEngine | None = None
) -> Iterator[Place]:
    engine = engine or ScriptedEngine(STORY)
    config = HttpConfig(api_keys=(KEY,), realtime=limits)
    with HttpServer(engine, config, port=0) as server:
        yield Place(server, engine)


@pytest.fixture(scope="module")
def shared() -> Iterator[Place]:
    yield from serving()


@pytest.fixture
def place(shared: Place) -> Place:
    shared.play(*STORY)
    return shared


def recv(connection: ClientConnection) -> Any:
    return json.loads(connection.recv(timeout=60))


# -- the door ----------------------------------------------------------------------------------


def test_a_key_is_needed_and_may_come_as_a_header_or_a_subprotocol(place: Place) -> None:
    with place.raw() as connection:
        assert recv(connection)["type"] == "session.created"
    protocols = ["realtime", f"openai-insecure-api-key.{KEY}"]
    with place.raw(additional_headers={}, subprotocols=protocols) as connection:
        assert connection.subprotocol == "realtime"
        assert recv(connection)["type"] == "session.created"
    wrong = ["realtime", "openai-insecure-api-key.nonsense"]
    for options in ({}, {"subprotocols": wrong}):
        refusal = closing(lambda o=options: place.raw(additional_headers={}, **o))  # type: ignore[misc]
        assert refusal.status_code == 401


def test_a_key_in_the_url_is_refused_even_if_it_is_right(place: Place) -> None:
    refusal = closing(lambda: place.raw(f"?api_key={KEY}"))
    assert refusal.status_code == 401
    assert json.loads(refusal.body)["error"]["code"] == "api_key_in_url"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, "host_not_allowed"),
        ({"Origin": "https://evil.example"}, "origin_not_allowed"),
    ],
)
def test_sec_01_foreign_hosts_and_origins_cannot_upgrade(
    place: Place, headers: dict[str, str], code: str
) -> None:
    all_headers = {"Authorization": f"Bearer {KEY}", **headers}
    refusal = closing(lambda: place.raw(additional_headers=all_headers))
    assert refusal.status_code == 403
    assert json.loads(refusal.body)["error"]["code"] == code


@pytest.mark.parametrize("origin", ["http://localhost:5173", "tauri://localhost"])
def test_sec_02_pages_of_this_machine_can(place: Place, origin: str) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "Origin": origin}
    with place.raw(additional_headers=headers) as connection:
        assert recv(connection)["type"] == "session.created"


def test_who_comes_without_a_websocket_is_told_what_it_is(place: Place) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        place.client.get("/realtime", cast_to=object)
    assert caught.value.status_code == 426
    assert "WebSocket" in caught.value.message


def test_an_unknown_model_is_a_404_and_openais_names_mean_ours(place: Place) -> None:
    refusal = closing(lambda: place.raw("?model=nonsense"))
    assert refusal.status_code == 404
    assert json.loads(refusal.body)["error"]["code"] == "model_not_found"
    with talking(place.client, model="gpt-realtime") as talk:
        assert talk.events[0].session.model == "tiny"


def test_rt_07_sockets_beyond_the_cap_are_refused_with_a_reason(place: Place) -> None:
    with ExitStack() as open_:
        for _ in range(LIMITS.max_sessions):
            assert recv(open_.enter_context(place.raw()))["type"] == "session.created"
        for _ in range(10):
            refusal = closing(place.raw)
            assert refusal.status_code == 503
            assert refusal.headers["Retry-After"]
            assert "All 3 realtime sessions" in json.loads(refusal.body)["error"]["message"]
        assert urlopen(f"{place.url}/health", timeout=60).status == 200
    wait_until(lambda: not place.n_sessions())
    with place.raw() as connection:
        assert recv(connection)["type"] == "session.created"


# -- what goes wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("{not json", "invalid_json", None),
        ("[" * 100_000, "invalid_json", None),
        ("[1]", "invalid_event", None),
        (b"\x00\x01", "invalid_message", None),
        ('{"type": "make.coffee"}', "invalid_event_type", "type"),
        ("{}", "invalid_event_type", "type"),
        ('{"type": "response.cancel", "sugar": 2}', "unknown_parameter", "sugar"),
        ('{"type": "input_audio_buffer.append"}', "missing_required_parameter", "audio"),
        ('{"type": "session.update", "session": {"voices": 1}}', "unknown_parameter",
         "session.voices"),
        ('{"type": "session.update", "session": {"model": "nonsense"}}', "model_not_found",
         "model"),
        ('{"type": "session.update", "session": {"tools": [{"type": "function", "name": "a b"}]}}',
         None, "session.tools[0].name"),
        ('{"type": "session.update", "session": {"tool_choice": "required"}}', None,
         "session.tool_choice"),
        ('{"type": "conversation.item.delete", "item_id": "x"}', "item_not_found", "item_id"),
        ('{"type": "response.create", "response": {"output_modalities": ["smell"]}}', None,
         "response.output_modalities[0]"),
        ('{"type": "response.cancel"}', "response_cancel_not_active", None),
    ],
)  # fmt: skip
def test_rt_06_a_bad_event_is_an_error_event_and_the_session_goes_on(
    place: Place, message: str | bytes, code: str | None, param: str | None
) -> None:
    with place.raw() as connection:
        recv(connection)
        connection.send(message)
        event = recv(connection)
        assert event["type"] == "error"
        assert (event["error"]["code"], event["error"]["param"]) == (code, param)
        connection.send('{"type": "session.update", "event_id": "e1", "session": {}}')
        assert recv(connection)["type"] == "session.updated"


def test_rt_06_an_error_names_the_event_that_it_is_about(place: Place) -> None:
    with place.raw() as connection:
        recv(connection)
        connection.send('{"type": "conversation.item.retrieve", "event_id": "mine"}')
        assert recv(connection)["error"]["event_id"] == "mine"


def test_rt_06_two_megabytes_are_read_and_what_is_over_the_limit_is_told(place: Place) -> None:
    with talking(place.client) as talk:
        talk.connection.session.update(
            session={"type": "realtime", "instructions": "x" * 2_000_000}
        )
        assert len(talk.until("session.updated").session.instructions) == 2_000_000
        talk.connection.session.update(
            session={"type": "realtime", "instructions": "x" * 2_600_000}
        )
        assert talk.error().code == "message_too_large"
        talk.update(instructions="Short.")


def test_without_a_model_that_hears_audio_is_refused_and_text_works(place: Place) -> None:
    with talking(place.client) as talk:
        assert talk.events[0].session.output_modalities == ["text"]
        talk.append(bytes(4_800))
        assert talk.error().code == "model_not_found"
        talk.write("Hello")
        talk.connection.response.create()
        assert talk.until("response.done").response.status == "completed"


def test_a_model_that_fails_fails_its_response_alone(place: Place) -> None:
    with talking(place.client) as talk:
        place.play(chunk("Once "), GenerationFailed("The batch failed."))
        talk.connection.response.create()
        response = talk.until("response.done").response
        assert response.status == "failed"
        assert response.status_details.error.message == "The batch failed."
        place.play(*STORY)
        talk.connection.response.create()
        assert talk.until("response.done").response.status == "completed"


# -- closing ------------------------------------------------------------------------------------


def closed_by_server(connection: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            connection.recv(timeout=60)
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, caught.value.rcvd.reason


def test_rt_03_an_idle_session_is_closed_with_a_code_and_a_reason() -> None:
    for place in serving(RealtimeLimits(idle_timeout_s=0.1)):
        with place.raw() as connection:
            assert closed_by_server(connection) == (1000, "Nothing came from the client for 0.1 s.")


def test_a_server_that_stops_lets_the_response_end_and_closes_the_session() -> None:
    for place in serving():
        gate = threading.Event()
        place.play(chunk("Once "), gate, chunk("more."), END)
        with place.raw() as connection:
            recv(connection)
            connection.send('{"type": "response.create"}')
            while recv(connection)["type"] != "response.output_text.delta":
                pass
            place.engine.start_draining()
            gate.set()
            while (event := recv(connection))["type"] != "response.done":
                pass
            assert event["response"]["output"][0]["content"][0]["text"] == "Once more."
            assert closed_by_server(connection) == (1001, "The server is shutting down.")


def test_rt_05_sessions_come_and_go_and_leave_nothing_behind(place: Place) -> None:
    wait_until(lambda: not place.n_sessions())
    for _ in range(20):
        with talking(place.client) as talk:
            talk.write("Hello")
            talk.connection.response.create()
            talk.until("response.created")  # and away, in the middle of the answer
    wait_until(lambda: not place.n_sessions())
    assert not place.engine.status().active_requests


def test_who_leaves_has_its_response_cancelled(place: Place) -> None:
    place.play(chunk("Once "), NEVER, END)
    with talking(place.client) as talk:
        talk.connection.response.create()
        talk.until("response.output_text.delta")
    wait_until(place.engine.streams[-1].closed.is_set)


# -- responses ----------------------------------------------------------------------------------


def test_a_text_response_has_openais_events_in_openais_order(place: Place) -> None:
    with talking(place.client) as talk:
        item = talk.write("Tell me a story.")
        n_before = len(talk.events)
        talk.connection.response.create()
        done = talk.until("response.done").response
        events = talk.events[n_before:]
        assert without_repeats(events) == [
            "response.created", "response.output_item.added", "conversation.item.added",
            "response.content_part.added", "response.output_text.delta",
            "response.output_text.done", "response.content_part.done",
            "response.output_item.done", "conversation.item.done", "response.done",
        ]  # fmt: skip
        assert talk.joined("response.output_text.delta") == "Once upon a time."
        output = done.output[0]
        assert output.content[0].text == "Once upon a time."
        assert (done.status, output.status) == ("completed", "completed")
        check_ids(events, done)
        added = next(e for e in events if e.type == "conversation.item.added")
        assert (added.item.id, added.previous_item_id) == (output.id, item.id)
        assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
        assert done.usage.input_token_details.cached_tokens == 1
        assert len({event.event_id for event in talk.events}) == len(talk.events)
        request = place.engine.requests[-1]
        assert request.priority is Priority.REALTIME
        assert isinstance(request.prompt, ChatPrompt)
        assert [m["role"] for m in request.prompt.messages] == ["system", "user"]


def check_ids(events: Sequence[Any], response: Any) -> None:
    """All events of a response name it, and their items by id and place."""
    indices = {item.id: i for i, item in enumerate(response.output)}
    for event in events:
        if getattr(event, "response_id", None) is not None:
            assert event.response_id == response.id
        if event.type.startswith("response.") and getattr(event, "item_id", None):
            assert indices[event.item_id] == event.output_index
        if getattr(event, "content_index", None) is not None:
            assert event.content_index == 0


CALLS = (
    StreamChunk(index=0, tool_calls=(ToolCallDelta(index=0, id="call_a", name="weather"),)),
    StreamChunk(index=0, tool_calls=(ToolCallDelta(index=0, arguments='{"city": '),)),
    StreamChunk(index=0, tool_calls=(ToolCallDelta(index=0, arguments='"Oslo"}'),)),
    StreamChunk(
        index=0, tool_calls=(ToolCallDelta(index=1, id="call_b", name="time", arguments="{}"),)
    ),
    chunk("", finish=FinishReason.TOOL_CALLS),
)
TOOLS = [{"type": "function", "name": name, "parameters": {}} for name in ("weather", "time")]


def test_function_calls_come_as_items_with_their_arguments_in_deltas(place: Place) -> None:
    with talking(place.client) as talk:
        talk.update(tools=TOOLS)
        talk.write("Weather and time, please.")
        place.play(*CALLS)
        talk.connection.response.create()
        response = talk.until("response.done").response
        first, second = response.output
        assert (first.type, first.name, first.call_id) == ("function_call", "weather", "call_a")
        assert (first.arguments, second.arguments) == ('{"city": "Oslo"}', "{}")
        deltas = talk.of("response.function_call_arguments.delta")
        assert "".join(e.delta for e in deltas if e.call_id == "call_a") == first.arguments
        done = talk.of("response.function_call_arguments.done")
        assert [(e.name, e.arguments, e.output_index) for e in done] == [
            ("weather", '{"city": "Oslo"}', 0), ("time", "{}", 1),
        ]  # fmt: skip
        check_ids(talk.events, response)
        for call_id, output in (("call_a", "rain"), ("call_b", "noon")):
            talk.connection.conversation.item.create(
                item={"type": "function_call_output", "call_id": call_id, "output": output}
            )
            talk.until("conversation.item.done")
        place.play(*STORY)
        talk.connection.response.create()
        talk.until("response.done")
        prompt = place.engine.requests[-1].prompt
        assert isinstance(prompt, ChatPrompt)
        _, _, called, *results = prompt.messages
        assert [c["function"]["name"] for c in called["tool_calls"]] == ["weather", "time"]
        assert [(r["role"], r["tool_call_id"], r["content"]) for r in results] == [
            ("tool", "call_a", "rain"), ("tool", "call_b", "noon"),
        ]  # fmt: skip


def test_what_a_response_changes_is_for_that_response_alone(place: Place) -> None:
    with talking(place.client) as talk:
        talk.update(instructions="Be brief.", temperature=0.0, tools=TOOLS)
        talk.write("Hello")
        talk.connection.response.create(
            response={
                "instructions": "Be long.",
                "max_output_tokens": 7,
                "metadata": {"topic": "greeting"},
                "tools": [],
            }
        )
        done = talk.until("response.done").response
        assert (done.max_output_tokens, done.metadata) == (7, {"topic": "greeting"})
        request = place.engine.requests[-1]
        assert isinstance(request.prompt, ChatPrompt)
        assert request.prompt.messages[0]["content"] == "Be long."
        assert (request.sampling_params.max_tokens, request.prompt.tools) == (7, ())
        talk.connection.response.create()
        talk.until("response.done")
        request = place.engine.requests[-1]
        assert isinstance(request.prompt, ChatPrompt)
        assert request.prompt.messages[0]["content"] == "Be brief."
        assert request.sampling_params.max_tokens is None
        assert request.sampling_params.temperature == 0.0
        assert len(request.prompt.tools) == 2


def test_a_response_beside_the_conversation_leaves_no_trace_in_it(place: Place) -> None:
    with talking(place.client) as talk:
        item = talk.write("I like tea.")
        talk.write("I like coffee.")
        n_before = len(talk.events)
        talk.connection.response.create(
            response={
                "conversation": "none",
                "input": [
                    {"type": "item_reference", "id": item.id},  # type: ignore[list-item]
                    {
                        "type": "message",
                        "role": "user",
                        "content": [{"type": "input_text", "text": "What do I like?"}],
                    },
                ],
            }
        )
        done = talk.until("response.done").response
        assert done.conversation_id is None and done.output[0].content[0].text
        assert not any(e.type.startswith("conversation.") for e in talk.events[n_before:])
        prompt = place.engine.requests[-1].prompt
        assert isinstance(prompt, ChatPrompt)
        assert [m["content"] for m in prompt.messages[1:]] == ["I like tea.", "What do I like?"]
        talk.connection.conversation.item.retrieve(item_id=done.output[0].id)
        assert talk.error().code == "item_not_found"


def test_one_response_at_a_time_and_it_can_be_cancelled(place: Place) -> None:
    place.play(chunk("Once "), NEVER, END)
    with talking(place.client) as talk:
        talk.write("Hello")
        talk.connection.response.create()
        talk.until("response.output_text.delta")
        talk.connection.response.create()
        assert talk.error().code == "conversation_already_has_active_response"
        talk.connection.response.cancel()
        done = talk.until("response.done").response
        assert (done.status, done.status_details.reason) == ("cancelled", "client_cancelled")
        assert done.output[0].status == "incomplete"
        wait_until(place.engine.streams[-1].closed.is_set)
        place.play(*STORY)
        talk.connection.response.create()
        assert talk.until("response.done").response.status == "completed"


def test_an_answer_that_was_cut_says_so(place: Place) -> None:
    place.play(chunk("Once "), chunk("", finish=FinishReason.LENGTH))
    with talking(place.client) as talk:
        talk.connection.response.create(response={"max_output_tokens": 1})
        done = talk.until("response.done").response
        assert (done.status, done.status_details.reason) == ("incomplete", "max_output_tokens")


# -- items and settings ------------------------------------------------------------------------


def ids_in_prompt(place: Place, talk: Talk) -> list[str]:
    talk.connection.response.create(response={"conversation": "none"})
    talk.until("response.done")
    prompt = place.engine.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [m["content"] for m in prompt.messages[1:]]


def test_items_are_put_looked_at_and_taken_out(place: Place) -> None:
    with talking(place.client) as talk:
        for text, previous in (("b", None), ("d", None), ("a", "root"), ("c", "b")):
            talk.connection.conversation.item.create(
                item={
                    "id": text,
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": text}],
                },
                **({"previous_item_id": previous} if previous else {}),
            )
            talk.until("conversation.item.done")
        added = talk.of("conversation.item.added")
        assert [e.previous_item_id for e in added] == [None, "b", None, "b"]
        assert ids_in_prompt(place, talk) == ["a", "b", "c", "d"]
        talk.connection.conversation.item.delete(item_id="b")
        assert talk.until("conversation.item.deleted").item_id == "b"
        assert ids_in_prompt(place, talk) == ["a", "c", "d"]
        talk.connection.conversation.item.retrieve(item_id="c")
        assert talk.until("conversation.item.retrieved").item.content[0].text == "c"
        talk.connection.conversation.item.truncate(item_id="c", content_index=0, audio_end_ms=0)
        assert talk.error().param == "item_id"
        talk.connection.conversation.item.create(
            item={"type": "message", "role": "user", "content": [{"type": "input_image"}]}
        )
        assert "image" in talk.error().message
        talk.connection.conversation.item.create(
            item={
                "id": "c",
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "c"}],
            }
        )
        assert talk.error().param == "item.id"


def test_settings_are_changed_by_field_and_shown_whole(place: Place) -> None:
    with talking(place.client) as talk:
        session = talk.update(
            audio={
                "input": {
                    "format": {"type": "audio/pcmu"},
                    "turn_detection": {"type": "server_vad", "silence_duration_ms": 300},
                }
            }
        )
        assert session.audio.input.format.type == "audio/pcmu"
        assert session.audio.input.turn_detection.silence_duration_ms == 300
        assert session.audio.input.turn_detection.threshold == 0.5
        session = talk.update(audio={"input": {"turn_detection": None}}, max_output_tokens=50)
        assert session.audio.input.turn_detection is None
        assert session.audio.input.format.type == "audio/pcmu"
        assert session.audio.output.format.rate == 24_000
        assert session.max_output_tokens == 50
        session = talk.update(
            audio={"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "high"}}}
        )
        assert session.audio.input.turn_detection.eagerness == "high"


def test_the_fields_of_the_older_protocol_are_understood(place: Place) -> None:
    with place.raw() as connection:
        recv(connection)
        session = {
            "modalities": ["text"],
            "input_audio_format": "g711_alaw",
            "turn_detection": None,
            "max_response_output_tokens": 9,
        }
        connection.send(json.dumps({"type": "session.update", "session": session}))
        updated = recv(connection)["session"]
        assert updated["output_modalities"] == ["text"]
        assert updated["audio"]["input"]["format"] == {"type": "audio/pcma"}
        assert updated["audio"]["input"]["turn_detection"] is None
        assert updated["max_output_tokens"] == 9


# -- long conversations --------------------------------------------------------------------------


class SmallEngine(ScriptedEngine):
    """Counts a token a message, and takes no more than ``n_ctx`` of them."""

    n_ctx = 8

    def count_tokens(self, prompt: Prompt, model: str | None = None) -> int:
        assert isinstance(prompt, ChatPrompt)
        return len(prompt.messages)

    def infer_stream(self, request: InferenceRequest) -> ScriptedStream:
        n_tokens = self.count_tokens(request.prompt)
        if n_tokens >= self.n_ctx:
            raise ContextOverflow(n_prompt_tokens=n_tokens, n_ctx=self.n_ctx)
        return super().infer_stream(request)


def test_token_limits_of_a_truncation_are_refused_and_its_ratio_is_taken(place: Place) -> None:
    ratio: dict[str, Any] = {"type": "retention_ratio", "retention_ratio": 0.5}
    with talking(place.client) as talk:
        assert talk.events[0].session.truncation == "auto"
        talk.connection.session.update(
            session={
                "type": "realtime",
                "truncation": {**ratio, "token_limits": {"post_instructions": 1000}},
            }
        )
        error = talk.error()
        assert (error.code, error.param) == (
            "unsupported_parameter",
            "session.truncation.token_limits",
        )
        for truncation in (ratio, {**ratio, "token_limits": None}):
            talk.update(truncation=truncation)
        assert talk.events[-1].session.truncation.retention_ratio == 0.5


def test_a_conversation_that_is_too_long_loses_its_oldest_turns_unless_that_is_disabled() -> None:
    for place in serving(engine=SmallEngine(STORY)):
        with talking(place.client) as talk:
            for i in range(10):
                talk.write(f"message {i}")
            talk.connection.response.create()
            assert talk.until("response.done").response.status == "completed"
            prompt = place.engine.requests[-1].prompt
            assert isinstance(prompt, ChatPrompt)
            texts = [m["content"] for m in prompt.messages]
            assert texts[1:] == [f"message {i}" for i in range(5, 10)]  # of 8, four fifths are kept
            assert texts[0] == talk.events[0].session.instructions
            talk.update(truncation="disabled")
            talk.connection.response.create()
            response = talk.until("response.done").response
            assert response.status == "failed"
            assert response.status_details.error.code == "context_length_exceeded"
