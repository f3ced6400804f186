"""Chat with audio on the wire, from a scripted engine; with real models: tests/audio."""

from __future__ import annotations

import base64
import io
import threading
import wave
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from ferrum_local.errors import AudioTooLong, GenerationFailed, InvalidAudio, QueueFull
from ferrum_local.http.app import create_app
from ferrum_local.http.state import state
from ferrum_local.types import ChatPrompt, FinishReason, StreamChunk, ToolCallDelta
from tests.contract.live import stream_events
from tests.contract.raw import Reply, post
from tests.fakes import POLL_S, ReadyLease, chunk, model_info, serving, wait_until
from tests.scripted_voice import BEEP_S, HEARD, RATE_HZ, SpeakingEngine

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]
WORDS = (chunk("Good day, "), chunk("how are "), chunk("you? "), chunk("Well?"))
END = chunk("", finish=FinishReason.STOP)
SPOKEN = "Good day, how are you? Well?"
N_CLAUSES = 3
WAV = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
PCM = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}
SOUND = base64.b64encode(b"RIFFsound").decode()


@pytest.fixture
def engine() -> SpeakingEngine:
    return SpeakingEngine([*WORDS, END])


@pytest.fixture
def url(engine: SpeakingEngine) -> Iterator[str]:
    with serving(create_app(engine)) as address:
        yield address.url


def ask(url: str, **fields: Any) -> Reply:
    return post(url, PATH, {"messages": HI, **fields})


def recording(**fields: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav", **fields}}


def said_to(engine: SpeakingEngine) -> list[dict[str, Any]]:
    """The messages of the last request."""
    prompt = engine.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return list(prompt.messages)


def test_an_answer_comes_as_audio_with_its_transcript(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Hi"}],
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
    )
    message = answer.choices[0].message
    assert message.content is None
    assert message.audio is not None
    assert message.audio.transcript == SPOKEN
    assert message.audio.id.startswith("audio-")
    assert message.audio.expires_at > answer.created + 3000
    with wave.open(io.BytesIO(base64.b64decode(message.audio.data))) as sound:
        assert (sound.getnchannels(), sound.getframerate()) == (1, RATE_HZ)
        assert sound.getnframes() == N_CLAUSES * round(BEEP_S * RATE_HZ)
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.audio_tokens == 0


def test_a_streamed_answer_is_transcript_and_pcm16_in_order(url: str) -> None:
    reply = ask(url, **PCM, stream=True, stream_options={"include_usage": True})
    assert reply.status == 200
    first, *middle, finish, usage, done = reply.events
    assert done == "[DONE]"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["usage"]["completion_tokens_details"]["audio_tokens"] == 0
    audios = [c["choices"][0]["delta"]["audio"] for c in middle]
    assert len({audio["id"] for audio in audios}) == 1
    assert all(len(audio) == 2 for audio in audios)
    assert "".join(audio.get("transcript", "") for audio in audios) == SPOKEN
    pcm = b"".join(base64.b64decode(audio.get("data", "")) for audio in audios)
    assert abs(len(pcm) / 2 / 24_000 - N_CLAUSES * BEEP_S) < 0.01
    assert [list(audio)[1] for audio in audios][-2:] == ["data", "expires_at"]


def test_the_first_clause_is_sent_while_the_model_still_writes(
    engine: SpeakingEngine, url: str
) -> None:
    gate = threading.Event()
    engine.script = (*WORDS[:1], gate, *WORDS[1:], END)
    events = stream_events(SimpleNamespace(url=url), PATH, {"messages": HI, **PCM})
    seen = []
    for event in events:
        seen += list(event["choices"][0]["delta"].get("audio", {}))
        if "data" in seen:
            gate.set()
    assert seen[:2] == ["id", "transcript"] and gate.is_set()


def test_calls_of_tools_are_not_spoken(engine: SpeakingEngine, url: str) -> None:
    call = ToolCallDelta(index=0, id="call_0", name="f", arguments="{}")
    script = [StreamChunk(index=0, tool_calls=(call,), token_ids=(1,)),
              chunk("", finish=FinishReason.TOOL_CALLS)]  # fmt: skip
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    engine.script = tuple(script)
    (choice,) = ask(url, **WAV, tools=tools).json["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert "audio" not in choice["message"] and choice["message"]["content"] is None
    deltas = [e["choices"][0]["delta"] for e in ask(url, **PCM, tools=tools, stream=True).events
              if isinstance(e, dict)]  # fmt: skip
    assert any("tool_calls" in delta for delta in deltas)
    assert not any("audio" in delta for delta in deltas)


@pytest.mark.parametrize("with_transcript", [False, True])
def test_a_spoken_answer_can_be_named_in_the_next_turn(
    engine: SpeakingEngine, url: str, with_transcript: bool
) -> None:
    answered = ask(url, **WAV).json["choices"][0]["message"]
    earlier = answered if with_transcript else {
        "role": "assistant", "audio": {"id": answered["audio"]["id"]},
    }  # fmt: skip
    assert ask(url, messages=[*HI, earlier, *HI]).status == 200
    assert said_to(engine)[1] == {"role": "assistant", "content": SPOKEN}


def test_an_answer_that_is_not_known_any_more_is_named(engine: SpeakingEngine, url: str) -> None:
    gone = {"role": "assistant", "audio": {"id": "audio-0"}}
    reply = ask(url, messages=[*HI, gone, *HI])
    assert (reply.status, reply.error["param"]) == (400, "messages[1].audio.id")
    assert reply.error["code"] == "audio_not_found"
    # With its transcript or content beside it nothing is missing.
    gone["audio"] = {"id": "audio-0", "transcript": "I said so."}
    assert ask(url, messages=[*HI, gone, *HI]).status == 200
    assert said_to(engine)[1]["content"] == "I said so."


def test_a_recording_is_written_down_once(engine: SpeakingEngine, url: str) -> None:
    parts = [{"type": "text", "text": "Listen:"}, recording()]
    messages = [{"role": "user", "content": parts}]
    assert ask(url, messages=messages).status == 200
    assert said_to(engine) == [{"role": "user", "content": f"Listen:\n{HEARD.strip()}"}]
    assert ask(url, messages=[*messages, {"role": "assistant", "content": "3"}, *HI]).status == 200
    assert len(engine.heard) == 1
    assert engine.heard[0].request.file.read() == b"RIFFsound"


def test_bare_samples_get_a_header(engine: SpeakingEngine, url: str) -> None:
    part = recording(data=base64.b64encode(bytes(480)).decode(), format="pcm16")
    assert ask(url, messages=[{"role": "user", "content": [part]}]).status == 200
    with wave.open(io.BytesIO(engine.heard[0].request.file.read())) as sound:
        assert (sound.getframerate(), sound.getnframes()) == (24_000, 240)


@pytest.mark.parametrize(
    ("part", "role", "param", "says"),
    [
        (recording(data="%%%"), "user", "input_audio.data", "base64"),
        (recording(data="data:audio/wav;base64,AAAA"), "user", "input_audio.data", "data URL"),
        (recording(data=""), "user", "input_audio.data", "nothing"),
        (recording(data="QUJD", format="pcm16"), "user", "input_audio.data", "2 bytes"),
        (recording(format="midi"), "user", "input_audio.format", "mp3"),
        ({"type": "input_audio"}, "user", "input_audio", "required"),
        (recording(), "system", "", "role user"),
    ],
)
def test_recordings_that_are_none_are_named(
    url: str, part: dict[str, Any], role: str, param: str, says: str
) -> None:
    reply = ask(url, messages=[{"role": role, "content": [part]}, *HI])
    assert reply.status == 400
    assert reply.error["param"] == f"messages[0].content[0].{param}".rstrip(".")
    assert says in reply.error["message"]


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [
        (InvalidAudio("file: is empty"), 400, "messages[0].content[0].input_audio.data"),
        (AudioTooLong(60.0), 413, "messages[0].content[0].input_audio.data"),
        (QueueFull("full", retry_after_s=1), 429, None),
    ],
)
def test_what_whisper_refuses(
    engine: SpeakingEngine, url: str, error: Exception, status: int, param: str | None
) -> None:
    engine.deaf_with = error
    reply = ask(url, messages=[{"role": "user", "content": [recording()]}])
    assert (reply.status, reply.error["param"]) == (status, param)
    assert "file:" not in reply.error["message"]


def test_without_speech_models_it_is_told_what_is_missing() -> None:
    with serving(create_app(SpeakingEngine(models=[model_info()]))) as address:
        reply = ask(address.url, messages=[{"role": "user", "content": [recording()]}])
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
        assert reply.error["param"] == "messages[0].content[0].input_audio"
        assert ask(address.url, **WAV).status == 404


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"modalities": ["text", "audio"]}, "audio"),
        ({"modalities": ["text", "video"]}, "modalities[1]"),
        ({"audio": WAV["audio"]}, "audio"),
        ({**WAV, "audio": {"voice": "alloy"}}, "audio.format"),
        ({**WAV, "audio": {"voice": "alloy", "format": "midi"}}, "audio.format"),
        ({**WAV, "audio": {"voice": "nobody", "format": "wav"}}, "audio.voice"),
        ({**WAV, "audio": {"voice": {"id": "nobody"}, "format": "wav"}}, "audio.voice"),
        ({**WAV, "stream": True}, "audio.format"),
        ({**WAV, "n": 2}, "n"),
        ({**WAV, "logprobs": True}, "logprobs"),
    ],
)
def test_fields_that_cannot_be(
    engine: SpeakingEngine, url: str, fields: dict[str, Any], param: str
) -> None:
    reply = ask(url, **fields)
    assert (reply.status, reply.error["param"]) == (400, param)
    assert engine.streams == []


def test_a_voice_that_breaks_ends_the_stream_with_its_error(
    engine: SpeakingEngine, url: str
) -> None:
    engine.fails_at, engine.error = 1, GenerationFailed("the voice broke")
    reply = ask(url, **PCM, stream=True)
    assert reply.status == 200
    *_, last = reply.events
    assert last["error"]["message"] == "the voice broke"
    assert ask(url, **WAV).status == 500
    assert all(stream.closed.is_set() for stream in engine.streams)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_writing_and_speaking(stream: bool) -> None:
    never = threading.Event()
    engine = SpeakingEngine([*WORDS, never], n_free=1)
    app = create_app(engine)
    with serving(app) as address:
        if stream:
            events = stream_events(address, PATH, {"messages": HI, **PCM})
            assert any("audio" in e["choices"][0]["delta"] for e in events)
            events.close()
        else:
            with pytest.raises(openai.APITimeoutError):
                openai.OpenAI(
                    base_url=f"{address.url}/v1", api_key="none", max_retries=0, timeout=0.3
                ).chat.completions.create(model="tiny", messages=HI, **WAV)  # type: ignore[call-overload]
        wait_until(lambda: engine.speeches[0].closed.is_set())
        wait_until(lambda: engine.streams[0].closed.is_set())
        wait_until(lambda: state(app).gate.open == 0)


class LoadingLease(ReadyLease):
    """Of a model that is on its way for ever."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        self.released.wait(min(timeout_s, POLL_S))
        return False

    def release(self) -> None:
        self.released.set()


@pytest.mark.parametrize("loading", ["tiny", "joe"])
def test_a_client_that_leaves_waits_no_longer_for_a_model(loading: str) -> None:
    lease = LoadingLease()

    class LoadingEngine(SpeakingEngine):
        def lease_model(self, model_id: str, *, keep_alive_s: float | None = None) -> ReadyLease:
            return lease if model_id == loading else ReadyLease()

    engine = LoadingEngine([*WORDS, END])
    app = create_app(engine)
    with serving(app) as address:
        with pytest.raises(openai.APITimeoutError):
            openai.OpenAI(
                base_url=f"{address.url}/v1", api_key="none", max_retries=0, timeout=0.3
            ).chat.completions.create(model="tiny", messages=HI, **WAV)  # type: ignore[call-overload]
        wait_until(lease.released.is_set)
        wait_until(lambda: state(app).gate.open == 0)
    assert not engine.speeches
    assert not engine.streams
