"""Push to talk, on devices and a server that only note what is asked of them."""

from __future__ import annotations

import base64
import io
import queue
from collections.abc import Callable
from typing import Any

import pytest

from ferrum_local.cli.push_to_talk import INTERRUPTION_ID, PushToTalk, State, converse
from ferrum_local.errors import FerrumError

RATE_HZ = 16_000
SECOND = bytes(RATE_HZ * 2)


class Devices:
    input_rate_hz = RATE_HZ

    def __init__(self) -> None:
        self.on_sound: Callable[[bytes], None] | None = None
        self.playing = b""
        self.played_s = 0.0

    def record(self, on_sound: Callable[[bytes], None]) -> None:
        self.on_sound = on_sound

    def mute(self) -> None:
        self.on_sound = None

    @property
    def is_playing(self) -> bool:
        return bool(self.playing)

    def play(self, pcm: bytes) -> None:
        self.playing += pcm

    def stop_playing(self) -> float:
        self.playing = b""
        return self.played_s


class Client:
    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.events: queue.SimpleQueue[dict[str, Any] | Exception] = queue.SimpleQueue()

    def send(self, type_: str, **fields: Any) -> None:
        self.sent.append({"type": type_, **fields})

    def append(self, pcm: bytes) -> None:
        self.send("input_audio_buffer.append", n_bytes=len(pcm))

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        event = self.events.get()
        if isinstance(event, Exception):
            raise event
        return event

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.sent]


class Desk:
    """All of them together."""

    def __init__(self) -> None:
        self.client = Client()
        self.devices = Devices()
        self.said: list[str] = []
        self.talk = PushToTalk(
            self.client, self.devices, on_sound=lambda pcm: self.talk.heard(pcm),
            say=self.said.append,
        )  # fmt: skip

    def ask(self, pcm: bytes = SECOND) -> None:
        self.talk.key()
        assert self.devices.on_sound is not None
        self.devices.on_sound(pcm)
        self.talk.key()

    def answer(self, response_id: str = "resp_1", *, done: bool = True) -> None:
        sound = base64.b64encode(b"\1\2" * 240).decode()
        about = {"response_id": response_id, "item_id": "item_1", "content_index": 0}
        self.talk.event({"type": "response.created", "response": {"id": response_id}})
        self.talk.event({"type": "response.output_audio.delta", "delta": sound, **about})
        if done:
            said = {"type": "response.output_audio_transcript.done", "transcript": "Noon."}
            self.talk.event({**said, **about})
            self.talk.event({"type": "response.done",
                             "response": {"id": response_id, "status": "completed"}})  # fmt: skip


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_turn_is_recorded_sent_and_answered(desk: Desk) -> None:
    desk.ask()
    assert desk.client.types == [
        "input_audio_buffer.append", "input_audio_buffer.commit", "response.create",
    ]  # fmt: skip
    assert desk.devices.on_sound is None
    desk.talk.event({"type": "conversation.item.input_audio_transcription.completed",
                     "transcript": " What time is it?"})  # fmt: skip
    desk.answer()
    assert len(desk.devices.playing) == 480
    assert desk.said == ["Listening …", "You: What time is it?", "Answer: Noon."]
    assert desk.talk.state is State.WAITING


def test_a_key_during_the_answer_interrupts_it(desk: Desk) -> None:
    desk.ask()
    desk.answer(done=False)
    desk.devices.played_s = 0.25
    desk.client.sent.clear()
    desk.talk.key()
    assert desk.client.sent == [
        {"type": "response.cancel", "event_id": INTERRUPTION_ID},
        {"type": "conversation.item.truncate", "event_id": INTERRUPTION_ID, "item_id": "item_1",
         "content_index": 0, "audio_end_ms": 250},
    ]  # fmt: skip
    assert desk.devices.playing == b"" and desk.talk.state is State.RECORDING
    desk.answer()  # what was under way is neither played nor shown
    assert desk.devices.playing == b"" and desk.said[-1] == "Listening …"
    assert desk.talk.state is State.RECORDING


def test_an_answer_that_is_only_still_heard_is_cut_too(desk: Desk) -> None:
    desk.ask()
    desk.answer()
    desk.client.sent.clear()
    desk.talk.key()
    assert desk.client.types == ["conversation.item.truncate"]


def test_an_answer_that_was_heard_stays_whole(desk: Desk) -> None:
    desk.ask()
    desk.answer()
    desk.devices.playing = b""
    desk.client.sent.clear()
    desk.talk.key()
    assert desk.client.sent == []


def test_a_slip_of_the_finger_asks_nothing(desk: Desk) -> None:
    desk.ask(bytes(100))
    assert desk.client.types[-1] == "input_audio_buffer.clear"
    assert desk.talk.state is State.WAITING
    assert "too short" in desk.said[-1]


def test_errors_are_shown_and_the_next_turn_goes(desk: Desk) -> None:
    desk.ask()
    error = {"message": "the queue is full", "event_id": desk.client.sent[-1]["event_id"]}
    desk.talk.event({"type": "error", "error": error})
    assert desk.said[-1] == "Error: the queue is full"
    assert desk.talk.state is State.WAITING
    desk.ask()
    desk.talk.event({"type": "response.created", "response": {"id": "resp_2"}})
    failed = {"id": "resp_2", "status": "failed",
              "status_details": {"error": {"message": "no voice"}}}  # fmt: skip
    desk.talk.event({"type": "response.done", "response": failed})
    assert desk.said[-1] == "Error: no voice"
    assert desk.talk.state is State.WAITING


def test_an_interruption_that_comes_too_late_is_no_error(desk: Desk) -> None:
    desk.ask()
    desk.answer(done=False)
    desk.ask()
    late = {"message": "no active response", "event_id": INTERRUPTION_ID}
    desk.talk.event({"type": "error", "error": late})
    assert desk.talk.state is State.ANSWERING
    desk.answer("resp_2")
    assert desk.said == ["Listening …", "Listening …", "Answer: Noon."]


def test_the_conversation_ends_with_the_keys() -> None:
    client, devices = Client(), Devices()
    converse(client, devices, io.StringIO("\n"))  # type: ignore[arg-type]
    assert devices.on_sound is None


class Never(io.StringIO):
    """Keys of which none is ever pressed."""

    def __next__(self) -> str:
        queue.SimpleQueue[None]().get()
        raise AssertionError


def test_the_end_of_the_session_is_told() -> None:
    client = Client()
    client.events.put(FerrumError("The server ended the session (1001)."))
    with pytest.raises(FerrumError, match="1001"):
        converse(client, Devices(), Never())  # type: ignore[arg-type]
