"""Chat that hears and speaks, with real models and the official client."""

from __future__ import annotations

import base64
import json
import urllib.request
from typing import Any

import numpy as np
import openai
import pytest

from ferrum_local.audio import wav
from tests.audio.sounds import as_wav, decoded, silence, tone, word_errors, words
from tests.conftest import RunningServer
from tests.contract.live import scrape, value

SENTENCE = "The train to the coast leaves in the morning, and it arrives in the evening."
SAY: dict[str, Any] = {"choice": [SENTENCE]}  # what the model is made to answer
HI: Any = [{"role": "user", "content": "When does the train leave?"}]
PCM_HZ = 24_000


def heard(server: RunningServer, data: bytes, name: str = "a.wav") -> str:
    client = server.client()
    return client.audio.transcriptions.create(model="tiny", file=(name, data), language="en").text


def template(server: RunningServer, messages: Any) -> str:
    body = json.dumps({"model": "smol", "messages": messages}).encode()
    request = urllib.request.Request(
        f"{server.url}/apply-template", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return str(json.loads(response.read())["prompt"])


@pytest.mark.parametrize("format_", ["wav", "mp3", "flac", "opus", "aac"])
def test_an_answer_sounds_as_it_is_written(speech_server: RunningServer, format_: Any) -> None:
    answer = speech_server.client().chat.completions.create(
        model="smol", messages=HI, modalities=["text", "audio"],
        audio={"voice": "nova", "format": format_}, extra_body=SAY,
    )  # fmt: skip
    audio = answer.choices[0].message.audio
    assert audio is not None and audio.transcript == SENTENCE
    data = base64.b64decode(audio.data)
    assert 2.0 < len(decoded(data, PCM_HZ)) / PCM_HZ < 8.0
    if format_ == "wav":
        assert word_errors(words(SENTENCE), words(heard(speech_server, data))) <= 3


def test_a_streamed_answer_can_be_heard_and_named_in_the_next_turn(
    speech_server: RunningServer,
) -> None:
    stream = speech_server.client().chat.completions.create(
        model="smol", messages=HI, modalities=["text", "audio"], stream=True,
        audio={"voice": "alloy", "format": "pcm16"}, extra_body=SAY,
    )  # fmt: skip
    pcm, transcript, ids = b"", "", set()
    for chunk in stream:
        audio = getattr(chunk.choices[0].delta, "audio", None)
        if audio is not None:
            ids.add(audio.id)
            transcript += audio.transcript or ""
            pcm += base64.b64decode(audio.data or "")
    assert transcript == SENTENCE
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
    text = heard(speech_server, as_wav(samples, PCM_HZ))
    assert word_errors(words(SENTENCE), words(text)) <= 3
    (id_,) = ids
    by_id = [*HI, {"role": "assistant", "audio": {"id": id_}}, *HI]
    in_words = [*HI, {"role": "assistant", "content": SENTENCE}, *HI]
    assert template(speech_server, by_id) == template(speech_server, in_words)


def test_a_spoken_question_is_what_the_model_reads(speech_server: RunningServer) -> None:
    client = speech_server.client()
    question = "Where can I find a good book about birds?"
    spoken = client.audio.speech.create(
        model="tts-1", voice="alloy", input=question, response_format="mp3"
    ).content
    samples = decoded(spoken, PCM_HZ)
    for format_, data in (("mp3", spoken), ("pcm16", wav.to_s16(samples))):
        part = recording(data, format_)
        messages: Any = [{"role": "user", "content": [{"type": "text", "text": "Listen."}, part]}]
        prompt = template(speech_server, messages)
        asked = prompt.split("Listen.")[1].split("<|im_end|>")[0]
        assert word_errors(words(question), words(asked)) <= 3, asked
        before = n_transcribed(speech_server)
        answer = client.chat.completions.create(model="smol", messages=messages, max_tokens=8)
        assert answer.choices[0].message.content
        assert n_transcribed(speech_server) == before  # the same recording is known already


def test_a_recording_that_is_none_is_named(speech_server: RunningServer) -> None:
    messages: Any = [{"role": "user", "content": [recording(b"these are no sounds")]}]
    with pytest.raises(openai.BadRequestError, match="is not audio") as raised:
        speech_server.client().chat.completions.create(model="smol", messages=messages)
    assert raised.value.param == "messages[0].content[0].input_audio.data"


def test_a_recording_without_words_is_no_text(speech_server: RunningServer) -> None:
    beep = np.concatenate([silence(0.5), tone(0.5), silence(0.5)])
    part = recording(as_wav(beep))
    spoken = template(speech_server, [{"role": "user", "content": [part]}])
    assert spoken == template(speech_server, [{"role": "user", "content": ""}])


def recording(data: bytes, format_: str = "wav") -> dict[str, Any]:
    audio = {"data": base64.b64encode(data).decode(), "format": format_}
    return {"type": "input_audio", "input_audio": audio}


def n_transcribed(server: RunningServer) -> float:
    return value(
        scrape(server.url), "ferrum_audio_requests_total", model="tiny", kind="transcription"
    )
