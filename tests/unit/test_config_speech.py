"""Which speech models are served: those that are named, else the starter models."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrum_local.audio_types import AudioConfig
from ferrum_local.cli.serve import make_serve_config
from ferrum_local.config import ConfigError, choose_models, choose_speech, resolve
from ferrum_local.config.resolve import FlagValue
from ferrum_local.errors import InvalidRequest
from ferrum_local.languages import NAME_BY_CODE, language_code, wanted_language


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with starter models; the files are empty, as only their names matter here."""
    (tmp_path / "whisper-tiny.en").mkdir()
    (tmp_path / "whisper-tiny.en" / "model.bin").touch()
    (tmp_path / "voices").mkdir()
    for name in ("en_US-joe-medium", "de_DE-anna-low"):
        (tmp_path / "voices" / f"{name}.onnx").touch()
    return tmp_path


def choose(folder: Path, **flags: FlagValue) -> AudioConfig:
    resolved = resolve({"models_dir": str(folder), **flags}, {}, cwd=folder)
    return choose_speech(resolved, {})


def ids(config: AudioConfig) -> tuple[list[str], list[str]]:
    return [m.id for m in config.whisper_models], [v.id for v in config.voices]


def test_the_starter_models_are_taken_where_they_are(folder: Path, tmp_path: Path) -> None:
    voices = ["de_DE-anna-low", "en_US-joe-medium"]
    assert ids(choose(folder)) == (["whisper-tiny.en"], voices)
    assert not choose(folder / "voices")
    assert choose(folder).tts.names["alloy"] == ""


def test_with_a_model_of_ones_own_only_what_is_named_is_served(folder: Path) -> None:
    assert not choose(folder, model=("a.gguf",))
    named = choose(folder, model=("a.gguf",), voice=("x/joe.onnx",))
    assert ids(named) == ([], ["joe"])
    assert Path(named.voices[0].path).is_absolute()


def test_what_is_named_takes_the_place_of_its_starter(folder: Path) -> None:
    config = choose(folder, whisper_model=("big=w/large-v3", "w/small.en"))
    assert ids(config)[0] == ["big", "small.en"]
    assert len(config.voices) == 2


def test_a_table_of_names(folder: Path) -> None:
    config = choose(folder, voice_name=("alloy=de_DE-anna-low", "Anna=de_DE-anna-low"))
    assert config.tts.names["alloy"] == config.tts.names["Anna"] == "de_DE-anna-low"
    assert config.tts.names["nova"] == ""
    with pytest.raises(ConfigError, match="a voice called 'bob'"):
        choose(folder, voice_name=("alloy=bob",))


def test_two_of_one_name_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="would be called 'joe'"):
        choose(folder, voice=("a/joe.onnx", "b/joe.onnx"))
    with pytest.raises(ConfigError, match="'default'"):
        choose(folder, voice=("default=a/joe.onnx",))


def test_speech_alone_can_be_served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = resolve({"models_dir": str(folder), "voice": ("joe.onnx",)}, {}, cwd=folder)
    assert choose_models(resolved, {}) == ()
    monkeypatch.chdir(folder / "voices")
    resolved = resolve({"models_dir": str(folder / "voices")}, {}, cwd=folder)
    with pytest.raises(ConfigError, match="no model"):
        choose_models(resolved, {"XDG_DATA_HOME": "/none"})


def test_paths_in_a_file_are_taken_from_its_place(tmp_path: Path) -> None:
    (tmp_path / "ferrum.toml").write_text(
        'voice = ["joe=voices/joe.onnx"]\nvoice_name = "nova=joe"'
    )
    resolved = resolve({}, {}, cwd=tmp_path, config=str(tmp_path / "ferrum.toml"))
    (voice,) = choose_speech(resolved, {}).voices
    assert (voice.id, voice.path) == ("joe", str(tmp_path / "voices" / "joe.onnx"))


def test_settings_reach_the_server(folder: Path) -> None:
    flags: dict[str, FlagValue] = {
        "models_dir": str(folder), "voice": ("joe.onnx",), "stt_threads": "3", "stt_workers": "5",
        "tts_threads": "2", "max_upload_mb": "7", "max_audio_s": "90m", "max_queue": "9",
    }  # fmt: skip
    resolved = resolve(flags, {}, cwd=folder)
    config = make_serve_config(resolved, (), choose_speech(resolved, {}))
    stt, tts = config.audio.stt, config.audio.tts
    assert (stt.threads, stt.workers, stt.max_duration_s, stt.max_queue) == (3, 5, 5400.0, 9)
    assert (tts.threads, tts.max_queue) == (2, 9)
    assert config.http.max_upload_bytes == 7 * 1024 * 1024


@pytest.mark.parametrize(
    ("text", "code"),
    [("de", "de"), ("DE", "de"), ("de-AT", "de"), ("pt_BR", "pt"), ("German", "german"),
     ("haitian creole", "ht"), ("mandarin", "zh"), ("klingon", None), ("", None), ("x-y", None)],
)  # fmt: skip
def test_languages_by_code_and_name(text: str, code: str | None) -> None:
    assert language_code(text) == ("de" if code == "german" else code)


@pytest.mark.parametrize(
    ("text", "code"),
    [(None, None), ("", None), (" Auto ", None), ("de-AT", "de"), ("german", "de")],
)
def test_a_language_is_wanted_or_left_to_be_found_out(text: str | None, code: str | None) -> None:
    assert wanted_language(text) == code


def test_a_wanted_language_that_is_none_is_refused_in_one_way() -> None:
    with pytest.raises(
        InvalidRequest, match="^language: expected a code like de .*'klingon'$"
    ) as e:
        wanted_language("klingon")
    assert e.value.param == "language"


def test_every_language_is_found_by_its_name() -> None:
    assert all(language_code(name.title()) == code for code, name in NAME_BY_CODE.items())
