"""What goes wrong around a session, and what it leaves behind: nothing. Scripted engines only."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ferrum_local.audio_types import LiveTranscriptRequest
from ferrum_local.errors import Cancelled, ModelNotFound, QueueFull
from ferrum_local.http.config import RealtimeLimits
from ferrum_local.types import InferenceRequest
from tests.fakes import POLL_S, ScriptedStream, wait_until
from tests.realtime.talk import Talk, talking
from tests.realtime.test_protocol import NEVER, Place, serving
from tests.scripted_hearing import HearingEngine, ScriptedTurn, loud, quiet


@pytest.fixture
def engine() -> HearingEngine:
    return HearingEngine()


@pytest.fixture
def place(engine: HearingEngine) -> Iterator[Place]:
    yield from serving(engine=engine)


@pytest.fixture
def talk(place: Place) -> Iterator[Talk]:
    with talking(place.client) as talk:
        yield talk


def say(talk: Talk, audio: str) -> None:
    talk.connection.input_audio_buffer.append(audio=audio)


def add_audio(talk: Talk, **where: str) -> None:
    talk.connection.conversation.item.create(
        item={
            "type": "message",
            "role": "user",
            "content": [{"type": "input_audio", "audio": loud(300)}],
        },
        **where,  # type: ignore[arg-type]
    )


def test_a_voice_is_let_go_if_the_model_cannot_write() -> None:
    class FullEngine(HearingEngine):
        def infer_stream(self, request: InferenceRequest) -> ScriptedStream:
            raise QueueFull("The queue is full.", retry_after_s=1)

    engine = FullEngine()
    for place in serving(engine=engine):
        with talking(place.client) as talk:
            talk.connection.response.create()
            assert talk.until("response.done").response.status == "failed"
            (speech,) = engine.speeches
            wait_until(speech.closed.is_set)


def test_a_silence_that_cannot_be_answered_is_told_and_the_session_goes_on() -> None:
    for place in serving():  # nothing hears there
        with talking(place.client) as talk:
            detection = {"type": "server_vad", "idle_timeout_ms": 1_000}
            talk.update(audio={"input": {"turn_detection": detection}})
            talk.connection.response.create()
            talk.until("response.done")
            assert talk.error().code == "model_not_found"
            talk.write("Hello?")


def test_audio_of_an_item_that_is_refused_is_not_heard(talk: Talk, engine: HearingEngine) -> None:
    add_audio(talk, previous_item_id="item_of_nobody")
    assert talk.error().code == "item_not_found"
    assert engine.turns
    assert not engine.n_open_turns


def test_audio_of_an_item_is_not_heard_without_a_detector(
    talk: Talk, engine: HearingEngine
) -> None:
    engine.no_detector_with = ModelNotFound("No detector here.")
    add_audio(talk)
    assert talk.error().message == "No detector here."
    assert not engine.n_open_turns


def test_rt_04_a_turn_longer_than_allowed_is_cut_and_the_next_follows(
    engine: HearingEngine,
) -> None:
    for place in serving(RealtimeLimits(max_audio_s=2.0), engine):
        with talking(place.client) as talk:
            for _ in range(5):
                say(talk, loud(1_000))
            say(talk, quiet(1_000))
            for _ in range(3):
                talk.until("input_audio_buffer.committed")
            talk.until("response.done")


def test_silence_fills_no_buffer(engine: HearingEngine) -> None:
    """One that holds less than what is kept before speech."""
    for place in serving(RealtimeLimits(max_audio_s=1.0), engine):
        with talking(place.client) as talk:
            say(talk, quiet(5_000))
            talk.write("Hello?")


@pytest.mark.parametrize("leaves", [True, False], ids=["client-leaves", "server-drains"])
def test_a_session_waits_for_a_model_no_longer_than_it_is_of_use(leaves: bool) -> None:
    class LoadingEngine(HearingEngine):
        loading = threading.Event()
        gave_up = threading.Event()

        def transcribe_live(
            self,
            request: LiveTranscriptRequest,
            *,
            is_abandoned: Callable[[], bool] | None = None,
        ) -> ScriptedTurn:
            self.loading.set()
            assert is_abandoned is not None
            while not is_abandoned():
                time.sleep(POLL_S)  # as the engine looks, again and again
            self.gave_up.set()
            raise Cancelled("The client left before the model was loaded.")

    engine = LoadingEngine()
    for place in serving(engine=engine):
        with place.raw() as connection:
            connection.send(f'{{"type": "input_audio_buffer.append", "audio": "{quiet(100)}"}}')
            wait_until(engine.loading.is_set)
            if leaves:
                connection.socket.shutdown(socket.SHUT_RDWR)
            else:
                engine.start_draining()
            wait_until(engine.gave_up.is_set)
        wait_until(lambda at=place: not at.n_sessions())  # type: ignore[misc]


def test_a_transcription_that_keeps_failing_is_not_tried_again_and_again(
    talk: Talk, engine: HearingEngine
) -> None:
    engine.deaf_live_with = RuntimeError("the ears broke")
    say(talk, loud(500))
    say(talk, quiet(250))  # a pause, in which the turn is looked at
    wait_until(lambda: bool(engine.looks))
    for _ in range(10):
        talk.write("Hello?")
    assert len(engine.looks) == 1
    say(talk, quiet(500))
    failed = talk.until("conversation.item.input_audio_transcription.failed")
    assert failed.error.message
    assert not engine.n_open_turns


def test_four_responses_beside_the_conversation_are_made_at_once(place: Place, talk: Talk) -> None:
    place.play(NEVER)
    talk.connection.response.create()
    for _ in range(4):
        talk.connection.response.create(response={"conversation": "none"})
    for _ in range(5):
        talk.until("response.created")
    talk.connection.response.create(response={"conversation": "none"})
    assert talk.next().error.code == "too_many_responses"
    talk.connection.response.cancel()
    talk.until("response.done")
    talk.connection.response.create(response={"conversation": "none"})
    assert talk.next().error.code == "too_many_responses"
