"""Realtime sessions with real models: a question is spoken, heard, answered and spoken."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import psutil
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from ferrum_local.audio import g711, wav
from ferrum_local.audio.resample import resampling
from tests.audio.sounds import word_errors, words
from tests.conftest import RunningServer
from tests.contract.live import health, wait_idle
from tests.fakes import wait_until
from tests.realtime.conftest import Say
from tests.realtime.talk import PCM_RATE_HZ, SECOND, SILENCE, Talk, talking, without_repeats

QUESTION = "Can you tell me something nice about the sea?"
HEARING = {"input": {"transcription": {"model": "whisper-1"}}}
PAUSE = SILENCE  # longer than silence_duration_ms
PATIENCE_S = 120.0


@pytest.fixture
def talk(voice_server: RunningServer) -> Iterator[Talk]:
    with talking(voice_server.client(), model="gpt-realtime") as talk:
        talk.update(audio=HEARING, temperature=0, max_output_tokens=40)
        yield talk


def heard_as(server: RunningServer, pcm: bytes) -> str:
    file = ("answer.wav", wav.header(PCM_RATE_HZ, len(pcm)) + pcm)
    return server.client().audio.transcriptions.create(model="whisper-1", file=file).text


def is_nearly(heard: str, said: str, *, errors: float) -> bool:
    """As many words may differ as that part of all."""
    n = word_errors(words(said), words(heard))
    return n <= max(1, errors * len(words(said)))


def test_a_spoken_question_is_heard_answered_and_spoken(
    voice_server: RunningServer, spoken: Say, talk: Talk
) -> None:
    talk.say(SILENCE[: SECOND // 2] + spoken(QUESTION) + PAUSE)
    done = talk.until("response.done").response
    events = [e for e in talk.events[2:] if not e.type.endswith("transcription.delta")]
    assert without_repeats(events)[:7] == [
        "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed", "conversation.item.added",
        "conversation.item.input_audio_transcription.completed", "conversation.item.done",
        "response.created",
    ]  # fmt: skip
    started, stopped = talk.of(
        "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"
    )
    n_ms = 500 + 1000 * len(spoken(QUESTION)) // SECOND
    assert abs(started.audio_start_ms - (500 - 300)) < 150
    assert abs(stopped.audio_end_ms - (n_ms + 500)) < 350  # joe breathes out
    (completed,) = talk.of("conversation.item.input_audio_transcription.completed")
    assert is_nearly(completed.transcript, QUESTION, errors=0.2), completed.transcript
    assert completed.item_id == started.item_id == stopped.item_id
    deltas = talk.joined("conversation.item.input_audio_transcription.delta")
    assert completed.transcript.startswith(deltas)

    text = talk.joined("response.output_audio_transcript.delta")
    (item,) = done.output
    assert text == item.content[0].transcript
    assert text == talk.of("response.output_audio_transcript.done")[0].transcript
    answer = heard_as(voice_server, talk.heard())
    assert is_nearly(answer, text, errors=0.25), (text, answer)
    assert done.usage.output_tokens > 5
    kinds = without_repeats(e for e in talk.events if e.type.startswith("response."))
    assert kinds[-5:] == [
        "response.output_audio.done", "response.output_audio_transcript.done",
        "response.content_part.done", "response.output_item.done", "response.done",
    ]  # fmt: skip


def test_a_second_turn_finds_the_first_in_the_cache(spoken: Say, talk: Talk) -> None:
    talk.update(output_modalities=["text"], max_output_tokens=16)
    for question in ("My name is Peter.", "Do you like music?"):
        talk.say(spoken(question) + PAUSE)
        done = talk.until("response.done").response
    details = done.usage.input_token_details
    assert details.cached_tokens > details.text_tokens / 2


def test_a_function_is_called_by_voice_and_its_result_is_used(spoken: Say, talk: Talk) -> None:
    weather = {
        "type": "function",
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
        },
    }
    talk.update(tools=[weather], tool_choice="required", parallel_tool_calls=False)
    talk.update(max_output_tokens=200)
    talk.say(spoken("What is the weather in Paris?") + PAUSE)
    done = talk.until("response.done").response
    (call,) = done.output
    assert (call.type, call.name, done.status) == ("function_call", "get_weather", "completed")
    assert set(json.loads(call.arguments)) == {"city"}
    assert talk.joined("response.function_call_arguments.delta") == call.arguments
    talk.connection.conversation.item.create(
        item={"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 20 C."}
    )
    talk.connection.response.create(
        response={"tool_choice": "none", "output_modalities": ["text"], "max_output_tokens": 20}
    )
    answer = talk.until("response.done").response
    assert answer.output[0].content[0].text


def test_speaking_into_an_answer_ends_it_and_what_was_not_heard_is_forgotten(
    voice_server: RunningServer, spoken: Say, talk: Talk
) -> None:
    talk.update(max_output_tokens=400)
    talk.write("Tell me a very long story about a king and his three sons.")
    talk.connection.response.create()
    talk.until("response.output_audio.delta")
    talk.say(spoken("Stop, please."))
    talk.until("input_audio_buffer.speech_started")
    n_before = len(talk.events)
    while talk.next().type not in ("conversation.item.truncated", "error"):
        pass
    truncated = talk.events[-1]
    since = talk.events[n_before:]
    assert "response.output_audio.delta" not in without_repeats(since)
    done = talk.of("response.done")[-1].response
    assert done.status in ("cancelled", "completed", "incomplete")  # or it was written already
    if done.status == "cancelled":
        assert done.status_details.reason == "turn_detected"
    told = talk.of("response.output_audio_transcript.done")[-1].transcript
    talk.connection.conversation.item.retrieve(item_id=truncated.item_id)
    remembered = talk.until("conversation.item.retrieved").item.content[0].transcript
    assert told.startswith(remembered) and len(remembered) < len(told)

    talk.say(PAUSE)
    answer = talk.until("response.done").response  # to "stop, please"
    assert answer.id != done.id
    wait_idle_sessions(voice_server, n=1)


def wait_idle_sessions(server: RunningServer, *, n: int) -> None:
    """Until no sequence runs, with ``n`` sessions open."""
    from tests.contract.live import load

    wait_until(
        lambda: (now := load(server)).running == now.queued == 0 and now.in_flight == n,
        PATIENCE_S,
    )


def test_push_to_talk_commits_by_hand_and_answers_when_asked(spoken: Say, talk: Talk) -> None:
    talk.update(
        audio={"input": {"turn_detection": None, **HEARING["input"]}}, output_modalities=["text"]
    )
    talk.say(spoken("Good morning, my dear friend."))
    talk.connection.input_audio_buffer.commit()
    completed = talk.until("conversation.item.input_audio_transcription.completed")
    assert is_nearly(completed.transcript, "Good morning, my dear friend.", errors=0.2)
    talk.until("conversation.item.done")
    talk.connection.response.create()  # nothing was answered by itself
    done = talk.until("response.done").response
    assert [e.type for e in talk.of("response.created")] == ["response.created"]
    assert done.output[0].content[0].text
    talk.connection.conversation.item.retrieve(item_id=completed.item_id)
    item = talk.until("conversation.item.retrieved").item
    kept = base64.b64decode(item.content[0].audio)
    assert abs(len(kept) - len(spoken("Good morning, my dear friend."))) < SECOND // 10


def test_rt_01_an_empty_buffer_cannot_be_committed_and_the_session_lives(
    spoken: Say, talk: Talk
) -> None:
    talk.connection.input_audio_buffer.commit()
    assert talk.error().code == "input_audio_buffer_commit_empty"
    talk.update(output_modalities=["text"])
    talk.say(spoken("Hello there, how are you?") + PAUSE)
    talk.until("input_audio_buffer.committed")
    for _ in range(2):  # turn detection did it already
        talk.connection.input_audio_buffer.commit()
        error = talk.error()
        assert error.code == "input_audio_buffer_commit_empty"
        assert "buffer too small" in error.message
    talk.until("response.done")
    talk.append(SILENCE)
    talk.connection.input_audio_buffer.clear()
    talk.until("input_audio_buffer.cleared")


def test_rt_02_who_speaks_stops_and_closes_still_gets_the_last_words(
    voice_server: RunningServer, spoken: Say
) -> None:
    said = "These are the last words that I am going to say today."
    with talking(voice_server.client(), extra_query={"intent": "transcription"}) as talk:
        talk.say(spoken(said))
        closing = threading.Thread(target=talk.connection.close)
        closing.start()  # it waits for the server's half of the closing handshake
        completed = talk.until("conversation.item.input_audio_transcription.completed")
        assert is_nearly(completed.transcript, said, errors=0.2), completed.transcript
        assert words(completed.transcript)[-1] == "today"
        closing.join()


def test_dictation_is_a_session_of_its_own_type(voice_server: RunningServer, spoken: Say) -> None:
    said = ("The first sentence is short.", "And this is the second one.")
    with talking(voice_server.client(), extra_query={"intent": "transcription"}) as talk:
        assert talk.events[0].session.type == "transcription"
        talk.connection.session.update(
            session={
                "type": "transcription",
                "audio": {"input": {"transcription": {"language": "en"}}},
            }
        )
        talk.until("session.updated")
        for sentence in said:
            talk.say(spoken(sentence) + PAUSE)
        for sentence in said:
            completed = talk.until("conversation.item.input_audio_transcription.completed")
            assert is_nearly(completed.transcript, sentence, errors=0.2), completed.transcript
            assert completed.usage.type == "duration" and completed.usage.seconds > 1
        talk.connection.response.create()
        assert "transcription session" in talk.error().message
        assert not talk.of("response.created")


def test_silence_and_noise_are_no_turn(talk: Talk) -> None:
    generator = np.random.default_rng(7)
    noise = wav.to_s16((generator.standard_normal(PCM_RATE_HZ) * 0.01).astype(np.float32))
    talk.say(SILENCE + noise + SILENCE)
    talk.update()  # an answer to what came after it
    assert not talk.of("input_audio_buffer.speech_started", "response.created")


@pytest.mark.parametrize("type_", ["audio/pcmu", "audio/pcma", "audio/pcm"])
def test_rt_09_other_formats_and_rates_are_heard(spoken: Say, talk: Talk, type_: str) -> None:
    rate_hz = 48_000 if type_ == "audio/pcm" else 8_000
    resample = resampling(PCM_RATE_HZ, rate_hz)
    pcm = spoken(QUESTION) + PAUSE
    samples = np.concatenate(
        [resample(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768.0), resample(None)]
    )
    law: g711.Law = "mu" if type_ == "audio/pcmu" else "a"
    data = wav.to_s16(samples) if rate_hz == 48_000 else g711.encode(samples, law)
    format_ = {"type": type_, **({"rate": rate_hz} if rate_hz == 48_000 else {})}
    talk.update(
        audio={"input": {"format": format_}, "output": {"format": format_}}, max_output_tokens=8
    )
    talk.say(data[:2] * 3, step=2)  # single samples
    talk.say(data)
    completed = talk.until("conversation.item.input_audio_transcription.completed")
    assert is_nearly(completed.transcript, QUESTION, errors=0.4), completed.transcript
    talk.until("response.done")
    spoken_ms = 1000 * len(talk.heard()) // (rate_hz * (2 if rate_hz == 48_000 else 1))
    assert 300 < spoken_ms < 15_000


def test_after_a_long_silence_the_model_goes_on_by_itself(talk: Talk) -> None:
    detection = {"type": "server_vad", "idle_timeout_ms": 1_000}
    talk.update(
        audio={"input": {"turn_detection": detection}}, output_modalities=["text"],
        max_output_tokens=8,
    )  # fmt: skip
    talk.write("Good morning.")
    talk.connection.response.create()
    first = talk.until("response.done").response
    triggered = talk.until("input_audio_buffer.timeout_triggered")
    committed = talk.until("input_audio_buffer.committed")
    assert committed.item_id == triggered.item_id
    second = talk.until("response.done").response
    assert second.id != first.id and second.output[0].content[0].text


def test_four_speak_at_once_and_nobody_hears_the_other(
    voice_server: RunningServer, spoken: Say
) -> None:
    topics = ("elephants", "trumpets", "bananas", "computers")
    for topic in topics:
        spoken(f"I would like to know more about {topic}.")
    together = threading.Barrier(len(topics))

    def one(topic: str) -> tuple[str, str]:
        with talking(voice_server.client()) as talk:
            talk.update(audio=HEARING, temperature=0, max_output_tokens=24)
            together.wait()
            talk.say(spoken(f"I would like to know more about {topic}.") + PAUSE)
            talk.until("response.done")
            (completed,) = talk.of("conversation.item.input_audio_transcription.completed")
            assert talk.joined("response.output_audio_transcript.delta") and talk.heard()
            assert len({e.response_id for e in talk.of("response.output_audio.delta")}) == 1
            return topic, completed.transcript.lower()

    with ThreadPoolExecutor(len(topics)) as threads:
        for topic, transcript in threads.map(one, topics):
            assert topic in transcript
            assert not any(other in transcript for other in topics if other != topic)


def test_rt_05_twenty_sessions_one_after_the_other_leave_nothing_behind(
    voice_server: RunningServer, spoken: Say
) -> None:
    def n_threads() -> int:
        root = psutil.Process(voice_server.pid)
        return sum(p.num_threads() for p in (root, *root.children(recursive=True)))

    def one() -> None:
        with talking(voice_server.client()) as talk:
            talk.say(spoken("Hello there, how are you?") + PAUSE)
            talk.until("response.created")

    one()
    wait_idle(voice_server)
    before = n_threads()
    for _ in range(20):
        one()
    wait_idle(voice_server)
    # The pool of HTTP threads may have grown by some; a session that left one would make 20.
    wait_until(lambda: n_threads() < before + 10, PATIENCE_S)
    assert health(voice_server) == 200


def test_rt_07_as_many_sockets_as_threads_leave_health_answering(
    voice_server: RunningServer,
) -> None:
    n_threads = 64 + 16  # of the pool, as docs/architecture.md has it
    url = voice_server.url.replace("http", "ws", 1) + "/v1/realtime"
    n_refused = 0
    with ExitStack() as sessions:
        for _ in range(n_threads + 4):
            try:
                sessions.enter_context(connect(url))
            except InvalidStatus as refusal:
                assert refusal.response.status_code == 503
                assert b"realtime sessions of this server are in use" in refusal.response.body
                n_refused += 1
        assert n_refused == n_threads + 4 - 8  # --realtime-sessions
        assert health(voice_server) == 200
    wait_idle(voice_server)
