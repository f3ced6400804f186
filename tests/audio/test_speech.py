"""Speech over HTTP with a real voice: every format, streams, odd texts; and Whisper listens."""

from __future__ import annotations

import base64
import io
import json
import struct
import threading
import urllib.request
import wave
from pathlib import Path
from typing import Any

import av
import numpy as np
import openai
import pytest

from ferrum_local.audio import wav
from tests.audio.sounds import Samples, as_wav, decoded, word_errors, words
from tests.conftest import RunningServer
from tests.contract.live import CHAT, RawClient, health
from tests.contract.raw import Reply, post
from tests.fakes import wait_until

SPEECH = "/v1/audio/speech"
VOICE_HZ = 22_050
FORMATS = {
    "mp3": ("audio/mpeg", "mp3float"),
    "opus": ("audio/ogg", "opus"),
    "aac": ("audio/aac", "aac"),
    "flac": ("audio/flac", "flac"),
    "wav": ("audio/wav", "pcm_s16le"),
}
HELLO = "Hello there, this is a test."
# Plain ones like those of the Harvard list, without a number: Whisper writes 9 for nine.
SENTENCES = (
    "The weather is very nice today.", "I would like a cup of coffee, please.",
    "The train to London leaves in a few minutes.", "We need to buy some bread and milk.",
    "She opened the window and looked at the garden.", "My brother works in a large hospital.",
    "The children are playing in the park.", "Can you tell me where the library is?",
    "He reads the newspaper every morning.", "The meeting starts after lunch.",
    "I have never seen such a beautiful house.", "Please open the door for me.",
    "The doctor told him to drink more water.", "They walked along the beach for hours.",
    "It is easy to learn a new language.", "The music was too loud for the old man.",
    "We are going to visit our friends on Sunday.", "The computer needs a new battery.",
    "A small bridge leads over the river.", "Thank you very much for your help.",
)  # fmt: skip


def speak(server: RunningServer, text: str = HELLO, **fields: Any) -> Reply:
    return post(server.url, SPEECH, {"input": text, **fields})


def spoken(server: RunningServer, text: str = HELLO, **fields: Any) -> Samples:
    """Samples at the voice's own rate."""
    reply = speak(server, text, response_format="wav", **fields)
    assert reply.status == 200, reply.body
    with wave.open(io.BytesIO(reply.body)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype("f4") / 32768


def heard(server: RunningServer, data: bytes, name: str = "a.wav") -> str:
    client = server.client()
    return client.audio.transcriptions.create(file=(name, data), model="tiny").text


def assert_heard(server: RunningServer, data: bytes, text: str) -> None:
    """A small model may mishear one word, and another processor may mishear another."""
    said = heard(server, data)
    assert word_errors(words(text), words(said)) <= 2, said


# Formats


@pytest.mark.parametrize("format_", FORMATS)
def test_tts_05_every_format_is_true_to_its_type(
    speech_server: RunningServer, format_: str
) -> None:
    media_type, codec = FORMATS[format_]
    for fields in ({}, {"stream": True}):
        reply = speak(speech_server, response_format=format_, **fields)
        assert reply.status == 200
        assert reply.headers["content-type"] == media_type
        assert ("content-length" in reply.headers) == (not fields)
        with av.open(io.BytesIO(reply.body)) as container:
            assert container.streams.audio[0].codec_context.name == codec
        assert len(decoded(reply.body, VOICE_HZ)) / VOICE_HZ == pytest.approx(1.8, abs=0.7)


def test_tts_05_mp3_is_the_default_and_pcm_has_no_header(speech_server: RunningServer) -> None:
    assert speak(speech_server).headers["content-type"] == "audio/mpeg"
    pcm = speak(speech_server, response_format="pcm")
    assert pcm.headers["content-type"] == "audio/pcm"
    assert pcm.headers["x-sample-rate"] == "24000"
    samples = np.frombuffer(pcm.body, "<i2").astype("f4") / 32768
    assert_heard(speech_server, as_wav(samples, 24_000), HELLO)
    slow = speak(speech_server, response_format="pcm", sample_rate=8000)
    assert slow.headers["x-sample-rate"] == "8000"
    assert len(slow.body) * 3 == pytest.approx(len(pcm.body), rel=0.2)


def test_a_wav_tells_its_size_or_that_it_is_a_stream(speech_server: RunningServer) -> None:
    whole = speak(speech_server, response_format="wav").body
    assert struct.unpack("<I", whole[40:44])[0] == len(whole) - wav.HEADER_BYTES
    assert struct.unpack("<I", whole[4:8])[0] == len(whole) - 8
    text = "One. Two. Three. Four."
    streamed = speak(speech_server, text, response_format="wav", stream=True).body
    assert streamed[40:44] == streamed[4:8] == b"\xff\xff\xff\xff"
    assert streamed.count(b"RIFF") == 1


def test_the_official_client_streams_to_a_file(
    speech_server: RunningServer, tmp_path: Path
) -> None:
    path = tmp_path / "out.mp3"
    with speech_server.client().audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=HELLO, extra_body={"stream": True}
    ) as response:
        response.stream_to_file(path)
    with av.open(str(path)) as container:
        assert container.streams.audio[0].codec_context.name == "mp3float"
    assert_heard(speech_server, path.read_bytes(), HELLO)


def test_piper_speaks_and_whisper_hears(speech_server: RunningServer) -> None:
    """20 sentences, over all formats there and back: at most one word in ten is wrong."""
    n_words = n_errors = 0
    formats = list(FORMATS)
    for i, sentence in enumerate(SENTENCES):
        format_ = formats[i % len(formats)]
        data = speak(speech_server, sentence, response_format=format_).body
        n_errors += word_errors(words(sentence), words(heard(speech_server, data, f"a.{format_}")))
        n_words += len(words(sentence))
    assert n_errors / n_words <= 0.10, f"{n_errors} of {n_words} words"


# Streams


def test_the_first_clause_leaves_before_the_rest_is_spoken(speech_server: RunningServer) -> None:
    text = "When the sun went down, " + "the people came out and sang until the morning. " * 60
    with RawClient(speech_server) as client:
        client.post(SPEECH, {"input": text, "response_format": "wav", "stream": True})
        status, headers = client.read_head()
        assert (status, headers["transfer-encoding"]) == (200, "chunked")
        chunks = client.chunks()
        first = next(chunks)
        assert first.startswith(b"RIFF")
        # One clause, of a text that takes minutes to hear.
        assert len(first) < 3 * VOICE_HZ * 2
    wait_until(lambda: health(speech_server) == 200)


def test_events_carry_the_same_file_and_times_of_phrases(speech_server: RunningServer) -> None:
    text = "First, a clause. Then a sentence."
    events = speak(
        speech_server, text, response_format="wav", stream_format="sse", timestamps=True
    ).events
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    done = events[-1]
    assert done["type"] == "speech.audio.done"
    usage = done["usage"]
    assert 0 < usage["input_tokens"] < usage["total_tokens"]
    data = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert data.startswith(b"RIFF") and data.count(b"WAVEfmt ") == 1
    times = [t for event in events[:-1] for t in event.get("timestamps", ())]
    assert " ".join(t["text"] for t in times) == text
    assert times[0]["start"] == 0
    assert all(a["end"] == b["start"] for a, b in zip(times, times[1:], strict=False))
    assert times[-1]["end"] == pytest.approx(
        (len(data) - wav.HEADER_BYTES) / 2 / VOICE_HZ, abs=0.01
    )
    plain = speak(speech_server, text, stream_format="sse").events
    assert not any("timestamps" in event for event in plain)


def test_tts_03_every_sentence_is_there(speech_server: RunningServer) -> None:
    both = decoded(speak(speech_server, "It is day. It is night.", stream=True).body)
    assert_heard(speech_server, as_wav(both), "It is day. It is night.")


def test_seams_do_not_click(speech_server: RunningServer) -> None:
    """At each seam no jump is larger than those of the speech around it."""
    text = "When the sun went down, the people came out. They sang. They danced, and went home."
    events = speak(
        speech_server, text, response_format="wav", stream_format="sse", timestamps=True
    ).events
    data = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    samples = np.frombuffer(data[wav.HEADER_BYTES :], "<i2").astype("f4")
    jumps = np.abs(np.diff(samples))
    seams = [round(t["end"] * VOICE_HZ) for e in events[:-1] for t in e.get("timestamps", ())][:-1]
    assert len(seams) == 3
    for seam in seams:
        around = np.concatenate([jumps[seam - 2205 : seam - 5], jumps[seam + 5 : seam + 2205]])
        assert jumps[seam - 2 : seam + 2].max() <= max(around.max(), 50)


def test_tts_06_a_long_text_streams_and_can_be_left(speech_server: RunningServer) -> None:
    """50,000 characters in one sentence without a full stop."""
    text = "and then they went on and on " * 1725
    assert len(text) > 50_000
    before = status_of(speech_server)
    with RawClient(speech_server) as client:
        client.post(SPEECH, {"input": text, "stream": True})
        assert client.read_head()[0] == 200
        chunks = client.chunks()
        assert sum(len(next(chunks)) for _ in range(3)) > 0
        assert health(speech_server) == 200
    wait_until(lambda: status_of(speech_server)["engine"]["active_requests"] == 0, 30)
    after = status_of(speech_server)
    assert after["scheduler"]["failed_requests"] == before["scheduler"]["failed_requests"]


def status_of(server: RunningServer) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.url}/health", timeout=60) as response:
        body: dict[str, Any] = json.load(response)
        return body


def test_tts_07_two_at_once_get_their_own(speech_server: RunningServer) -> None:
    texts = {"a": "The cat sat on the mat.", "b": "My house has a green door."}
    sounds: dict[str, bytes] = {}

    def ask(name: str) -> None:
        sounds[name] = speak(speech_server, texts[name], response_format="wav").body

    threads = [threading.Thread(target=ask, args=(name,)) for name in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, text in texts.items():
        assert_heard(speech_server, sounds[name], text)


# Texts


@pytest.mark.parametrize("text", ["", "   \n", "🙂", "...", "###", "你好世界", "<p></p>"])
@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream_format": "sse"}])
def test_tts_01_tts_02_nothing_to_say_is_a_400(
    speech_server: RunningServer, text: str, fields: dict[str, Any]
) -> None:
    reply = speak(speech_server, text, **fields)
    assert (reply.status, reply.error["param"]) == (400, "input")


def test_tts_09_marks_are_not_read_unless_asked_for(speech_server: RunningServer) -> None:
    text = "# News\n**Cats** are `nice` <ul><li>really</li></ul> 🙂"
    plain = spoken(speech_server, "News\nCats are nice. Really.")  # lines, and so pauses, as there
    marked = spoken(speech_server, text)
    assert len(marked) == pytest.approx(len(plain), rel=0.25)
    assert "asterisk" not in heard(speech_server, as_wav(marked, VOICE_HZ)).lower()
    assert len(spoken(speech_server, text, normalize=False)) > len(marked) * 1.4


def test_numbers_and_abbreviations_are_read_as_a_person_would(speech_server: RunningServer) -> None:
    spoken_text = speak(speech_server, "Dr. Smith has a dog, i.e. a friend.").body
    assert_heard(speech_server, spoken_text, "Dr. Smith has a dog, that is, a friend.")
    price = heard(speech_server, speak(speech_server, "It costs $20, or 50% less.").body)
    for number in ({"20", "twenty"}, {"50", "fifty"}):
        assert number & set(words(price)), price


def test_ssml_pauses(speech_server: RunningServer) -> None:
    plain = spoken(speech_server, "<speak>One. Two.</speak>")
    paused = spoken(speech_server, '<speak>One. <break time="2s"/> Two.</speak>')
    assert (len(paused) - len(plain)) / VOICE_HZ == pytest.approx(2.0, abs=0.6)
    reply = speak(speech_server, "<speak><emphasis>x</emphasis></speak>")
    assert reply.status == 400 and "<emphasis>" in reply.error["message"]


# Voices and options


def test_tts_10_voices_and_openai_names(speech_server: RunningServer) -> None:
    with urllib.request.urlopen(f"{speech_server.url}/v1/audio/voices", timeout=60) as response:
        (voice,) = json.load(response)["data"]
    assert (voice["id"], voice["language"], voice["quality"]) == ("joe", "en-US", "medium")
    assert (voice["sample_rate"], voice["speakers"], voice["state"]) == (VOICE_HZ, [], "ready")
    assert {"alloy", "nova"} <= set(voice["names"])
    for fields in (
        {"model": "tts-1", "voice": "alloy"}, {"model": "gpt-4o-mini-tts-2025-12-15"},
        {"model": "joe"}, {"voice": {"id": "joe"}}, {"voice": "nova", "language": "en"},
        {"language": "english"}, {"language": "auto"},
    ):  # fmt: skip
        assert speak(speech_server, "Hi.", **fields).status == 200, fields
    with pytest.raises(openai.BadRequestError, match="known: joe, alloy"):
        speech_server.client().audio.speech.create(model="tts-1", voice="bob", input="Hi.")
    with pytest.raises(openai.NotFoundError, match="Known: joe"):
        speech_server.client().audio.speech.create(model="tts-9", voice="alloy", input="Hi.")


def test_tts_11_speed_scales_the_duration(speech_server: RunningServer) -> None:
    text = "This is a sentence of some length, to be measured."
    normal = len(spoken(speech_server, text, speed=1))
    assert len(spoken(speech_server, text, speed=0.25)) == pytest.approx(normal * 4, rel=0.35)
    assert len(spoken(speech_server, text, speed=2)) == pytest.approx(normal / 2, rel=0.35)
    assert len(spoken(speech_server, text, speed=4)) < normal * 0.5


def test_volume_scales_the_samples(speech_server: RunningServer) -> None:
    assert np.abs(spoken(speech_server, volume=0.5)).max() == pytest.approx(0.5, abs=0.05)
    assert np.abs(spoken(speech_server)).max() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"speed": 0}, "speed"), ({"speed": -1}, "speed"), ({"speed": 100}, "speed"),
        ({"response_format": "xyz"}, "response_format"), ({"volume": 0}, "volume"),
        ({"sample_rate": 1}, "sample_rate"), ({"speaker": "ann"}, "speaker"),
        ({"sample_rate": 22_050, "response_format": "opus"}, "sample_rate"),
        ({"language": "klingon"}, "language"), ({"language": "de"}, "language"),
        ({"voice": "joe", "language": "fr"}, "language"),
        ({"instructions": 7}, "instructions"), ({"timestamps": True}, "timestamps"),
        ({"stream": False, "stream_format": "sse"}, "stream"), ({"colour": "red"}, "colour"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(
    speech_server: RunningServer, fields: dict[str, Any], param: str
) -> None:
    reply = speak(speech_server, "Hi.", **fields)
    assert (reply.status, reply.error["param"]) == (400, param)


def test_an_unknown_priority_is_named(speech_server: RunningServer) -> None:
    headers = {"X-Ferrum-Priority": "urgent"}
    reply = post(speech_server.url, SPEECH, {"input": HELLO}, headers=headers)
    assert (reply.status, reply.error["param"]) == (400, "X-Ferrum-Priority")


def test_instructions_are_not_followed_and_the_reply_says_so(speech_server: RunningServer) -> None:
    create = speech_server.client().audio.speech.with_raw_response.create
    told = create(model="gpt-4o-mini-tts", voice="alloy", input="Hi.", instructions="Be cheerful.")
    assert told.headers["x-ferrum-ignored"] == "instructions"
    assert "x-ferrum-ignored" not in create(model="tts-1", voice="alloy", input="Hi.").headers


def test_too_long_a_text_is_refused(speech_server: RunningServer) -> None:
    reply = speak(speech_server, "a " * 50_001)
    assert (reply.status, reply.error["param"]) == (400, "input")


def test_tts_14_models_are_listed_by_kind(speech_server: RunningServer) -> None:
    models = {m.id: m for m in speech_server.client().models.list()}
    assert set(models) == {"smol", "tiny", "base", "joe"}
    capabilities = {id_: m.capabilities for id_, m in models.items()}  # type: ignore[attr-defined]
    assert capabilities["joe"] == ["speech"]
    assert capabilities["base"] == ["transcription", "translation"]
    kinds = {m["id"]: m["kind"] for m in status_of(speech_server)["models"]}
    assert kinds == {
        "smol": "chat", "tiny": "transcription", "base": "transcription", "joe": "speech",
    }  # fmt: skip


def test_without_speech_models_the_routes_name_the_flag(server: RunningServer) -> None:
    reply = post(server.url, SPEECH, {"input": "Hi."})
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert "--voice" in reply.error["message"]
    reply = post(server.url, "/v1/audio/transcriptions", {})
    assert reply.status == 404 and "--whisper-model" in reply.error["message"]
    with urllib.request.urlopen(f"{server.url}/v1/audio/voices", timeout=60) as response:
        assert json.load(response)["data"] == []
    assert post(server.url, CHAT, {"messages": [{"role": "user", "content": "x"}],
                                   "max_tokens": 1}).status == 200  # fmt: skip
