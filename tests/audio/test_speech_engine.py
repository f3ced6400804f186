"""The engine's speech methods, its start with broken voices, and what it does not import."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ferrum_local.audio_types import (
    AudioConfig,
    LiveTranscriptRequest,
    SpeechRequest,
    TranscriptionRequest,
    TtsOptions,
)
from ferrum_local.engine.facade import LocalEngine
from ferrum_local.engine.spoken_answer import AnswerAudio, SpokenAnswer
from ferrum_local.errors import (
    Cancelled,
    InvalidAudio,
    InvalidRequest,
    ModelLoadError,
    ModelNotFound,
    ModelUnusable,
    Unavailable,
)
from ferrum_local.stt.files import check_whisper_dir
from ferrum_local.tts.files import check_voice_file
from ferrum_local.tts.voice import Voice
from ferrum_local.types import LibraryOptions, ModelSpec
from tests.audio.conftest import JFK_TEXT, TINY
from tests.audio.sounds import as_wav, silence, word_errors, words
from tests.conftest import ROOT, VOICE
from tests.fakes import wait_until
from tests.tiny_voice import write_tiny_voice

TINY_SPEC = ModelSpec(id="tiny", path=str(TINY))
VOICE_SPEC = ModelSpec(id="joe", path=str(VOICE))


@pytest.fixture(scope="module")
def engine(speech_models: None, steady_voice: Path) -> Iterator[LocalEngine]:
    voice = ModelSpec(id="joe", path=str(steady_voice))
    config = AudioConfig(
        whisper_models=(TINY_SPEC,), voices=(voice,), tts=TtsOptions(names={"nova": "joe"})
    )
    engine = LocalEngine([], audio=config)
    engine.load()
    yield engine
    engine.close()


def test_only_the_noise_of_a_voice_makes_two_readings_differ(steady_voice: Path) -> None:
    """What all tests that listen for words rely on."""

    def readings(path: Path) -> list[bytes]:
        voice = Voice(str(path), TtsOptions(threads=1))
        return [voice.speak("It is a sunny day.")[0].tobytes() for _ in range(2)]

    first, second = readings(steady_voice)
    assert first and first == second
    first, second = readings(VOICE)
    assert first != second


def test_the_methods_of_the_seed(engine: LocalEngine, jfk: Path) -> None:
    assert words(engine.transcribe_bytes(jfk.read_bytes())) == words(JFK_TEXT)
    assert engine.transcribe_bytes(as_wav(silence(2.0)), "english") == ""
    assert engine.tts_sample_rate() == 22_050
    chunks = list(engine.synthesize_speech("It is a sunny day.", "auto", chunk_frames=5))
    assert all(len(chunk) <= 5 * 0.08 * 22_050 for chunk in chunks)
    samples = np.concatenate([np.asarray(chunk, np.float32) for chunk in chunks])
    heard = engine.transcribe_bytes(as_wav(samples, 22_050), "en")
    assert word_errors(words("It is a sunny day."), words(heard)) <= 2, heard


def test_what_the_seed_methods_refuse(engine: LocalEngine) -> None:
    with pytest.raises(InvalidAudio):
        engine.transcribe_bytes(b"")
    with pytest.raises(InvalidRequest, match="language"):
        engine.transcribe_bytes(as_wav(silence(1.0)), "klingon")
    with pytest.raises(InvalidRequest, match="nothing in it"):
        engine.synthesize_speech("🙂")
    with pytest.raises(InvalidRequest, match="no voice speaks 'de'"):
        engine.synthesize_speech("Hallo", "german")


def test_a_speech_can_be_cancelled_by_its_id(engine: LocalEngine) -> None:
    request = SpeechRequest(id="s-1", model_id="nova", text="One sentence here. " * 50)
    with engine.speak(request) as stream:
        parts = iter(stream)
        next(parts)
        assert engine.status().active_requests == 1
        assert engine.cancel("s-1")
        with pytest.raises(Cancelled):
            next(parts)
    assert engine.status().active_requests == 0


def test_an_answer_is_spoken_while_it_is_written(engine: LocalEngine) -> None:
    text = "Well, **this is** the first line.\n\nAnd here, after a pause, is the second 😀."
    written = [text[i : i + 5] for i in range(0, len(text), 5)]

    def writer() -> Iterator[str]:
        yield from written[:-1]
        first_heard.wait(60)  # the last piece comes only when the first clause was spoken
        yield written[-1]

    first_heard = threading.Event()
    texts, audios = [], []
    with SpokenAnswer(engine, voice="nova") as answer:
        for part in answer.parts(writer()):
            if isinstance(part, AnswerAudio):
                audios.append(part)
                first_heard.set()
            else:
                texts.append(part.text)
    assert "".join(texts) == text
    assert "".join(audio.text for audio in audios) == text
    assert audios[0].text.rstrip() == "Well, **this is** the first line."
    samples = np.concatenate([audio.samples for audio in audios])
    heard = engine.transcribe_bytes(as_wav(samples, answer.sample_rate_hz), "en")
    said = "Well, this is the first line. And here, after a pause, is the second."
    assert word_errors(words(said), words(heard)) <= 2, heard
    assert engine.status().active_requests == 0


def test_a_voice_with_several_speakers(speech_models: None, tmp_path: Path) -> None:
    path = tmp_path / "both.onnx"
    write_tiny_voice(path, like=VOICE)
    config = AudioConfig(voices=(ModelSpec(id="both", path=str(path)),))
    engine = LocalEngine([], audio=config)
    engine.load()
    assert engine.voices()[0].speakers == ("ann", "bob")

    def mean(speaker: str | None) -> float:
        request = SpeechRequest(id="s", model_id="both", text="Hello.", speaker=speaker)
        (part,) = engine.speak(request)
        return float(np.frombuffer(part.pcm, "<f4").mean())

    assert mean("ann") > 0.8 and mean("0") > 0.8 and mean(None) > 0.8
    assert mean("bob") < -0.8 and mean("1") < -0.8
    with pytest.raises(InvalidRequest, match="known: ann, bob"):
        mean("cleo")
    engine.close()


def test_numbers_of_what_was_done(engine: LocalEngine) -> None:
    before = {m.model_id: m for m in engine.metrics().speech}
    spoken = sum(len(chunk) for chunk in engine.synthesize_speech("A few words."))
    engine.transcribe_bytes(as_wav(silence(3.0)))
    after = {m.model_id: m for m in engine.metrics().speech}
    gained = after["joe"].audio_seconds_total - before["joe"].audio_seconds_total
    assert gained == pytest.approx(spoken / 22_050, abs=0.01)
    gained = after["tiny"].audio_seconds_total - before["tiny"].audio_seconds_total
    assert gained == pytest.approx(3.0)
    assert after["tiny"].requests_total == before["tiny"].requests_total + 1


def test_tts_13_a_voice_that_cannot_speak_takes_nothing_down(
    speech_models: None, tmp_path: Path, jfk: Path
) -> None:
    """Its model is damaged: the check in a child process tells, the rest serves on."""
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(VOICE.read_bytes()[:1_000_000])
    shutil.copy(f"{VOICE}.json", f"{broken}.json")
    voices = (ModelSpec(id="broken", path=str(broken)), VOICE_SPEC)
    engine = LocalEngine([], audio=AudioConfig(whisper_models=(TINY_SPEC,), voices=voices))
    engine.load()
    status = engine.status()
    assert status.state == "ready"
    states = {info.id: info.state for info in status.models}
    assert states == {"tiny": "ready", "broken": "failed", "joe": "ready"}
    with pytest.raises(ModelUnusable, match="cannot speak here"):
        engine.speak(SpeechRequest(id="a", model_id="broken", text="Hi."))
    assert list(engine.speak(SpeechRequest(id="b", model_id="joe", text="Hi.")))
    engine.close()


def test_speech_models_of_a_library_are_loaded_when_they_are_asked_for(
    speech_models: None, tmp_path: Path, jfk: Path
) -> None:
    (tmp_path / "tiny").symlink_to(TINY.resolve())
    for end in ("", ".json"):
        (tmp_path / f"joe.onnx{end}").symlink_to(f"{VOICE.resolve()}{end}")
    engine = LocalEngine([], library=LibraryOptions(directories=(str(tmp_path),)))
    engine.load()
    (voice,) = engine.voices()
    assert (voice.id, voice.language, voice.state) == ("joe", "en-US", "unloaded")
    assert "country" in engine.transcribe_bytes(jfk.read_bytes())
    with engine.speak(SpeechRequest(id="a", model_id="joe", text="Hi there.")) as speech:
        assert engine.unload_model("joe").state == "unloading"
        assert list(speech)
    wait_until(lambda: engine.resolve_model("joe", "speech").state == "unloaded")
    assert engine.unload_model("tiny").state == "unloaded"
    assert engine.status().loaded_models == ()
    assert engine.tts_sample_rate() == 22_050
    engine.close()


def test_live_speech_waits_for_its_model_only_while_somebody_listens(
    speech_models: None, tmp_path: Path
) -> None:
    (tmp_path / "tiny").symlink_to(TINY.resolve())
    engine = LocalEngine([], library=LibraryOptions(directories=(str(tmp_path),)))
    engine.load()
    request = LiveTranscriptRequest(id="a", model_id="tiny")
    with engine._models._manager._work:  # nothing is loaded meanwhile
        with pytest.raises(Cancelled):
            engine.transcribe_live(request, is_abandoned=lambda: True)
    engine.close()


def test_tts_13_missing_espeak_data_is_found_in_a_child(
    speech_models: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """espeak-ng ends its process when it has no data; here that is the child's."""
    from ferrum_local.tts.voice import check_in_child

    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'piper.espeakbridge': os.abort()\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ModelLoadError, match="cannot speak here"):
        check_in_child(str(VOICE))


def test_stt_10_a_missing_model_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such directory"):
        check_whisper_dir(str(tmp_path / "none"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="model.bin, tokenizer.json, vocabulary.txt or"):
        check_whisper_dir(str(tmp_path))
    with pytest.raises(ModelLoadError, match="no such file"):
        check_voice_file(str(tmp_path / "none.onnx"))
    voice = tmp_path / "voice.onnx"
    voice.write_bytes(bytes(100_000))
    with pytest.raises(ModelLoadError, match=r"voice\.onnx\.json: cannot be read"):
        check_voice_file(str(voice))


def test_a_damaged_whisper_model_is_an_error_and_no_crash(
    speech_models: None, tmp_path: Path
) -> None:
    for path in TINY.iterdir():
        shutil.copy(path, tmp_path)
    whole = (tmp_path / "model.bin").read_bytes()
    (tmp_path / "model.bin").write_bytes(whole[:2_000_000])
    spec = ModelSpec(id="cut", path=str(tmp_path))
    engine = LocalEngine([], audio=AudioConfig(whisper_models=(spec,)))
    with pytest.raises(ModelLoadError, match=str(tmp_path)):
        engine.load()
    assert engine.status().models[0].state == "failed"


def test_before_loading_and_while_draining_it_says_so(speech_models: None) -> None:
    config = AudioConfig(whisper_models=(TINY_SPEC,), voices=(VOICE_SPEC,))
    engine = LocalEngine([], audio=config)
    with pytest.raises(Unavailable) as caught:
        engine.speak(SpeechRequest(id="a", model_id="joe", text="Hi."))
    assert caught.value.code == "loading"
    engine.start_draining()
    with pytest.raises(Unavailable) as caught:
        engine.transcribe_bytes(as_wav(silence(1.0)))
    assert caught.value.code == "draining"


def test_an_engine_without_speech_names_the_flags() -> None:
    engine = LocalEngine([])
    with pytest.raises(ModelNotFound, match="--whisper-model"):
        engine.transcribe_bytes(b"x")
    with pytest.raises(ModelNotFound, match="--voice"):
        engine.tts_sample_rate()
    assert engine.voices() == ()


def test_heavy_modules_are_imported_only_with_speech_models() -> None:
    """Also not by the routes, or by asking them in vain."""
    program = (
        "import sys\n"
        "from ferrum_local.engine.facade import LocalEngine\n"
        "from ferrum_local.http.app import create_app\n"
        "engine = LocalEngine([])\n"
        "engine.load()\n"
        "client = create_app(engine).test_client()\n"
        "assert client.post('/v1/audio/speech', json={'input': 'Hi.'}).status_code == 404\n"
        "heavy = {'faster_whisper', 'ctranslate2', 'piper', 'onnxruntime', 'av', 'llama_cpp'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_transcription_request_names_its_model(engine: LocalEngine, jfk: Path) -> None:
    with jfk.open("rb") as file:
        stream = engine.transcribe(TranscriptionRequest(id="t", model_id="tiny", file=file))
        segments = list(stream)
    assert segments and [s.id for s in segments] == list(range(len(segments)))
    assert (stream.facts.model_id, stream.facts.language) == ("tiny", "en")
    assert stream.facts.duration_s == pytest.approx(11.0)


def test_few_characters_that_are_many_words_are_spoken_in_pieces_and_can_be_left() -> None:
    n_checks = 0

    def check() -> None:
        nonlocal n_checks
        n_checks += 1
        if n_checks == 2:
            raise Cancelled("The client left.")

    voice = Voice(str(VOICE), TtsOptions())
    with pytest.raises(Cancelled):
        voice.speak("1/" * 149 + "1", check=check)


def test_a_voice_that_rests_gives_back_the_memory_of_a_long_clause() -> None:
    """The runtime would keep room for the longest one ever: half a gigabyte here.

    In a process of its own: what other tests have freed would be taken instead.
    """
    script = f"""
import psutil, time
from ferrum_local.audio_types import TtsOptions
from ferrum_local.tts.voice import Voice

def taken_mib():
    return (psutil.Process().memory_info().rss - before) >> 20

voice = Voice({str(VOICE)!r}, TtsOptions())
voice.speak("One two three.")
before = psutil.Process().memory_info().rss
voice.speak("people walked home slowly past bright windows where music played " * 4)
assert taken_mib() > 200, taken_mib()  # else this shows nothing
give_up_s = time.monotonic() + 20
while taken_mib() > 200 and time.monotonic() < give_up_s:
    time.sleep(0.1)
assert taken_mib() <= 200, taken_mib()
assert len(voice.speak("One two three.")[0]) > 0
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=120)
