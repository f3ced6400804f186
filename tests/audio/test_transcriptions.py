"""Transcription over HTTP with real models: the official client, and every odd input."""

from __future__ import annotations

import http.client
import io
import json
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import openai
import pytest

from tests.audio.conftest import JFK_TEXT
from tests.audio.espeak import espeak_wav
from tests.audio.sounds import as_wav, chord, encoded, noise, silence, word_errors, words
from tests.conftest import RunningServer
from tests.contract.live import health
from tests.contract.raw import Reply, post
from tests.fakes import wait_until

BOUNDARY = "speech-test"
SPANISH = (
    "Buenos días. Me llamo Pedro y vivo en Madrid. Hoy es domingo y voy a la casa de mi hermano."
)
Decoded = Any


def form(
    fields: Mapping[str, str | list[str]], file: bytes | None, name: str = "a.wav"
) -> tuple[bytes, dict[str, str]]:
    parts = []
    for field, value in fields.items():
        for text in [value] if isinstance(value, str) else value:
            head = f'Content-Disposition: form-data; name="{field}"'
            parts.append(f"--{BOUNDARY}\r\n{head}\r\n\r\n{text}\r\n".encode())
    if file is not None:
        head = f'Content-Disposition: form-data; name="file"; filename="{name}"'
        parts.append(f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + file + b"\r\n")
    body = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
    return body, {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def ask(
    server: RunningServer,
    file: bytes | None,
    path: str = "/v1/audio/transcriptions",
    **fields: str | list[str],
) -> Reply:
    spelled = {name.replace("__", "[]"): value for name, value in fields.items()}
    body, headers = form(spelled, file)
    return post(server.url, path, body, headers)


@pytest.fixture(scope="session")
def recording(jfk: Path) -> bytes:
    return jfk.read_bytes()


@pytest.fixture(scope="session")
def samples(jfk: Path) -> Decoded:
    from tests.audio.sounds import decoded

    return decoded(jfk.read_bytes())


# The official client


def test_the_recording_is_heard_word_for_word(speech_server: RunningServer, jfk: Path) -> None:
    client = speech_server.client()
    for path, model in ((jfk, "base"), (jfk, "whisper-1"), (jfk.with_suffix(".mp3"), "tiny")):
        text = client.audio.transcriptions.create(file=path, model=model).text
        assert words(text) == words(JFK_TEXT)


def test_stt_14_the_client_gets_every_format(speech_server: RunningServer, jfk: Path) -> None:
    create = speech_server.client().audio.transcriptions.create
    plain = create(file=jfk, model="whisper-1", response_format="json")
    assert plain.usage is not None and plain.usage.type == "duration"
    assert plain.usage.seconds == 11
    text = plain.text
    assert create(file=jfk, model="whisper-1", response_format="text") == text + "\n"
    srt = create(file=jfk, model="whisper-1", response_format="srt")
    assert srt.startswith("1\n00:00:00,000 --> 00:00:0")
    vtt = create(file=jfk, model="whisper-1", response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:0")
    for subtitles in (srt, vtt):
        spoken = [ln for ln in subtitles.splitlines() if "-->" not in ln and not ln.isdecimal()]
        assert words(" ".join(spoken).replace("WEBVTT", "")) == words(JFK_TEXT)
    verbose = create(file=jfk, model="whisper-1", response_format="verbose_json")
    assert (verbose.language, verbose.duration, verbose.text) == ("english", 11.0, text)
    assert verbose.segments and "".join(s.text for s in verbose.segments).strip() == text
    assert verbose.segments[0].avg_logprob < 0 < len(verbose.segments[0].tokens)
    ends = [s.end for s in verbose.segments]
    assert ends == sorted(ends) and 10 < ends[-1] <= 11


def test_the_client_streams(speech_server: RunningServer, jfk: Path) -> None:
    events = list(
        speech_server.client().audio.transcriptions.create(
            file=jfk, model="gpt-4o-transcribe", stream=True, include=["logprobs"]
        )
    )
    deltas = [e.delta for e in events if e.type == "transcript.text.delta"]
    done = events[-1]
    assert done.type == "transcript.text.done"
    assert "".join(deltas) == done.text and words(done.text) == words(JFK_TEXT)
    assert done.logprobs and all(e.logprob is not None and e.logprob <= 0 for e in done.logprobs)
    assert "".join(str(e.token) for e in done.logprobs).strip() == done.text
    assert done.usage is not None
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
    assert done.usage.input_tokens == 550


def test_include_logprobs_without_a_stream(speech_server: RunningServer, jfk: Path) -> None:
    answer = speech_server.client().audio.transcriptions.create(
        file=jfk, model="whisper-1", include=["logprobs"]
    )
    assert answer.logprobs
    # One for each token: the bytes of all are the text.
    parts = [bytes(map(int, entry.bytes or ())).decode() for entry in answer.logprobs]
    assert "".join(parts).strip() == answer.text
    assert parts == [entry.token for entry in answer.logprobs]
    values = [entry.logprob or 0.0 for entry in answer.logprobs]
    assert -20 < min(values) < max(values) <= 0
    assert np.mean(values) > -1, "the recording is clear"


def test_a_second_language_is_found_and_translated(
    speech_server: RunningServer, tmp_path: Path
) -> None:
    path = tmp_path / "es.wav"
    path.write_bytes(espeak_wav(SPANISH, "es"))
    audio = speech_server.client().audio
    heard = audio.transcriptions.create(file=path, model="base", response_format="verbose_json")
    assert heard.language == "spanish"
    assert word_errors(words(SPANISH), words(heard.text)) <= 3, heard.text
    named = audio.transcriptions.create(file=path, model="base", language="Spanish")
    assert "domingo" in words(named.text)
    english = audio.translations.create(file=path, model="base", response_format="verbose_json")
    assert {"brother's", "house"} <= set(words(english.text)), english.text
    assert english.task == "translate"  # type: ignore[attr-defined]


# What is no speech


@pytest.mark.parametrize("model", ["tiny", "base"])
@pytest.mark.parametrize("sound", [silence, noise, chord], ids=["silence", "noise", "tones"])
def test_stt_01_silence_noise_and_tones_give_no_words(
    speech_server: RunningServer, model: str, sound: Any
) -> None:
    reply = ask(speech_server, as_wav(sound(10.0)), model=model)
    assert (reply.status, reply.json["text"]) == (200, "")


def test_stt_02_no_speech_and_no_language(speech_server: RunningServer) -> None:
    reply = ask(
        speech_server, as_wav(silence(5.0)), model="base", vad_filter="true",
        response_format="verbose_json",
    )  # fmt: skip
    assert reply.status == 200
    assert reply.json["text"] == "" and reply.json["segments"] == []
    assert reply.json["language"] == "unknown" and reply.json["duration"] == 5.0
    for format_, body in (("srt", b""), ("vtt", b"WEBVTT\n\n"), ("text", b"\n")):
        assert ask(speech_server, as_wav(silence(1.0)), response_format=format_).body == body


@pytest.mark.parametrize(
    "data", [b"", as_wav(silence(0)), b"just text" * 50], ids=["empty", "header only", "text"]
)
@pytest.mark.parametrize("stream", ["true", "false"])
def test_stt_03_no_sound_is_a_400(speech_server: RunningServer, data: bytes, stream: str) -> None:
    reply = ask(speech_server, data, stream=stream)
    assert reply.status == 400
    assert (reply.error["param"], reply.error["code"]) == ("file", "invalid_audio")


def test_stt_03_no_file_is_a_400(speech_server: RunningServer) -> None:
    reply = ask(speech_server, None, model="whisper-1")
    assert (reply.status, reply.error["param"]) == (400, "file")
    body, headers = form({"file": "as text"}, None)
    reply = post(speech_server.url, "/v1/audio/transcriptions", body, headers)
    assert "got text" in reply.error["message"]


# Containers


@pytest.mark.parametrize("container", ["webm", "mkv"])
def test_stt_05_every_container_has_the_same_words(
    speech_server: RunningServer, samples: Decoded, container: str
) -> None:
    data = encoded([samples, samples], container, video=container == "mkv")
    reply = ask(speech_server, data)
    assert words(reply.json["text"]) == words(JFK_TEXT)


def test_stt_05_a_minute_of_stereo_whose_index_is_at_the_end(
    speech_server: RunningServer, samples: Decoded
) -> None:
    minute = np.concatenate([np.concatenate([samples, silence(4.0)]) for _ in range(4)])
    data = encoded([minute, minute], "m4a")
    assert data.index(b"moov") > data.index(b"mdat")
    reply = ask(speech_server, data, response_format="verbose_json")
    assert reply.json["duration"] == pytest.approx(60.0, abs=0.2)
    assert words(reply.json["text"]) == words(JFK_TEXT) * 4


# Times of words and segments


@pytest.mark.parametrize(
    ("asked", "has"),
    [
        (None, {"segments"}),
        (["segment"], {"segments"}),
        (["word"], {"words"}),
        (["word", "segment"], {"segments", "words"}),
    ],
)
@pytest.mark.parametrize("key", ["timestamp_granularities__", "timestamp_granularities"])
def test_stt_06_words_for_word_and_segments_for_segment(
    speech_server: RunningServer, recording: bytes, asked: list[str] | None, has: set[str], key: str
) -> None:
    fields: dict[str, Any] = {key: asked} if asked else {}
    reply = ask(speech_server, recording, response_format="verbose_json", **fields)
    assert {"segments", "words"} & set(reply.json) == has
    if "words" in has:
        times = [(w["start"], w["end"]) for w in reply.json["words"]]
        assert [words(w["word"])[0] for w in reply.json["words"]] == words(JFK_TEXT)
        assert all(start <= end for start, end in times) and times == sorted(times)


def test_stt_07_words_without_verbose_json_are_refused(
    speech_server: RunningServer, recording: bytes
) -> None:
    reply = ask(speech_server, recording, timestamp_granularities__="word", response_format="json")
    assert reply.status == 400
    assert "timestamp_granularities" in reply.error["message"]
    assert "response_format" in reply.error["message"]


# Long recordings, and several at once


def spoken_minutes(samples: Decoded, n: int) -> bytes:
    return as_wav(np.concatenate([np.concatenate([samples, silence(3.0)]) for _ in range(n)]))


def test_long_and_short_give_the_same_words(
    speech_server: RunningServer, samples: Decoded, recording: bytes
) -> None:
    """One at a time, in a batch, and in a stream that begins early."""
    data = spoken_minutes(samples, 4)
    whole = ask(speech_server, data, response_format="verbose_json").json
    assert words(whole["text"]) == words(JFK_TEXT) * 4
    ends = [segment["end"] for segment in whole["segments"]]
    assert ends == sorted(ends) and ends[-1] == pytest.approx(3 * 14 + 10.9, abs=0.5)
    events = ask(speech_server, data, stream="true").events
    assert len(events) > 2
    assert words(events[-1]["text"]) == words(JFK_TEXT) * 4


def test_stt_11_nothing_is_said_again_and_again(
    speech_server: RunningServer, samples: Decoded
) -> None:
    reply = ask(speech_server, spoken_minutes(samples, 3), prompt="We talk about a country.")
    heard = words(reply.json["text"])
    assert len(heard) <= len(words(JFK_TEXT)) * 3 + 2


def test_stt_09_two_at_once_are_both_right(speech_server: RunningServer, recording: bytes) -> None:
    replies: dict[str, str] = {}

    def send(name: str, **fields: str) -> None:
        reply = ask(speech_server, recording, **fields)
        replies[name] = reply.events[-1]["text"] if "stream" in fields else reply.json["text"]

    threads = [
        threading.Thread(target=send, args=("a",)),
        threading.Thread(target=send, args=("b",)),
        threading.Thread(target=send, args=("c",), kwargs={"stream": "true"}),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: words(text) for name, text in replies.items()} == dict.fromkeys(
        "abc", words(JFK_TEXT)
    )


def running(server: RunningServer) -> int:
    from tests.contract.live import scrape

    return int(sum(
        value for (name, _), value in scrape(server.url).items()
        if name in ("ferrum_audio_running", "ferrum_audio_waiting")
    ))  # fmt: skip


def test_stt_13_others_are_served_and_a_client_that_leaves_is_noticed(
    speech_server: RunningServer, samples: Decoded
) -> None:
    body, headers = form({"model": "base"}, spoken_minutes(samples, 25))
    connection = http.client.HTTPConnection(urlsplit(speech_server.url).netloc, timeout=60)
    connection.request("POST", "/v1/audio/transcriptions", body, headers)
    wait_until(lambda: running(speech_server) == 1, 60)
    assert health(speech_server) == 200
    answer = post(
        speech_server.url, "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    )  # fmt: skip
    assert answer.status == 200
    assert running(speech_server) == 1, "the recording was through before chat was asked"
    connection.close()
    wait_until(lambda: running(speech_server) == 0, 60)


# What is refused


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"language": "klingon"}, "language", "code like de"),
        ({"language": "fr"}, "language", "English only"),
        ({"temperature": "3"}, "temperature", "from 0 to 1"),
        ({"temperature": "warm"}, "temperature", "number"),
        ({"response_format": "xml"}, "response_format", "verbose_json"),
        ({"response_format": "srt", "stream": "true"}, "stream", "json or text"),
        ({"response_format": "text", "include__": "logprobs"}, "include", "json"),
        ({"foo": "1"}, "foo", "unknown field"),
        ({"model": ["a", "b"]}, "model", "twice"),
        ({"chunking_strategy": "never"}, "chunking_strategy", "server_vad"),
        ({"chunking_strategy": '{"type":"server_vad","threshold":7}'},
         "chunking_strategy.threshold", "0.99"),
        ({"chunking_strategy": "auto", "vad_filter": "false", "stream": "maybe"}, "stream", "true"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(
    speech_server: RunningServer, fields: dict[str, Any], param: str, says: str
) -> None:
    reply = ask(speech_server, as_wav(silence(1.0)), **fields)
    assert (reply.status, reply.error["param"]) == (400, param)
    assert says in reply.error["message"]


def test_an_english_model_does_not_translate(speech_server: RunningServer) -> None:
    reply = ask(speech_server, as_wav(silence(1.0)), "/v1/audio/translations", model="tiny")
    assert (reply.status, reply.error["code"]) == (400, "unsupported_parameter")


def test_an_unknown_model_is_a_404(speech_server: RunningServer) -> None:
    with pytest.raises(openai.NotFoundError, match="Known: tiny, base"):
        speech_server.client().audio.transcriptions.create(
            file=("a.wav", as_wav(silence(1.0))), model="whisper-9"
        )


def test_another_media_type_is_a_415(speech_server: RunningServer) -> None:
    assert post(speech_server.url, "/v1/audio/transcriptions", {"file": "x"}).status == 415


def test_limits_of_size_and_length_are_413(speech_server: RunningServer) -> None:
    reply = ask(speech_server, bytes(17 * 1024 * 1024))
    assert (reply.status, reply.error["code"]) == (413, "body_too_large")
    long = encoded([silence(21 * 60.0)], "flac")
    reply = ask(speech_server, long)
    assert (reply.status, reply.error["code"]) == (413, "audio_too_long")


def test_a_form_with_too_many_fields_or_too_much_in_them_says_so(
    speech_server: RunningServer,
) -> None:
    for fields in ({"prompt": "a" * 2**21}, {f"field{i}": "a" for i in range(101)}):
        reply = ask(speech_server, b"RIFF", **fields)
        assert (reply.status, reply.error["code"]) == (413, "body_too_large")
        assert "more than 100 fields" in reply.error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"vad_filter": "false"},
        {"chunking_strategy": "auto"},
        {"chunking_strategy": '{"type": "server_vad", "threshold": 0.3}'},
        {"chunking_strategy[type]": "server_vad", "chunking_strategy[silence_duration_ms]": "400"},
        {"hotwords": "Kennedy"},
        {"keywords__": ["Kennedy", "fellow"]},
        {"prompt": "A speech.<|endoftext|>", "temperature": "0.2"},
        {"language": "auto"},
        {"language": "English"},
        {"model": ""},
    ],
)
def test_options_that_leave_the_words_as_they_are(
    speech_server: RunningServer, recording: bytes, fields: dict[str, Any]
) -> None:
    reply = ask(speech_server, recording, **fields)
    assert reply.status == 200, reply.body
    assert words(reply.json["text"]) == words(JFK_TEXT)


def test_a_time_limit_ends_a_transcription(speech_server: RunningServer, samples: Decoded) -> None:
    body, headers = form({"model": "base"}, spoken_minutes(samples, 20))
    reply = post(
        speech_server.url, "/v1/audio/transcriptions", body,
        {**headers, "X-Ferrum-Timeout": "0.5"},
    )  # fmt: skip
    assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
    wait_until(lambda: running(speech_server) == 0, 60)


def test_stt_10_no_socket_is_opened(speech_models: None, jfk: Path, tmp_path: Path) -> None:
    """Loading and transcribing in a process where every socket is an error."""
    import sys

    from tests.audio.conftest import TINY
    from tests.conftest import ROOT

    program = tmp_path / "offline.py"
    program.write_text(
        "import socket\n"
        "def no_socket(*a, **k): raise AssertionError('a socket was opened')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = no_socket\n"
        "from ferrum_local.audio_types import AudioConfig\n"
        "from ferrum_local.engine.facade import LocalEngine\n"
        "from ferrum_local.types import ModelSpec\n"
        f"spec = ModelSpec(id='tiny', path={str(TINY)!r})\n"
        "engine = LocalEngine([], audio=AudioConfig(whisper_models=(spec,)))\n"
        "engine.load()\n"
        f"print(engine.transcribe_bytes(open({str(jfk)!r}, 'rb').read(), 'english'))\n"
        "engine.close()\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert words(done.stdout) == words(JFK_TEXT)


def test_a_form_in_the_official_shape_of_bytes(speech_server: RunningServer, jfk: Path) -> None:
    """Unnamed bytes have no file extension to go by."""
    answer = speech_server.client().audio.transcriptions.create(
        file=io.BytesIO(jfk.read_bytes()), model="whisper-1"
    )
    assert words(answer.text) == words(JFK_TEXT)
    assert json.loads(answer.to_json())["text"] == answer.text
