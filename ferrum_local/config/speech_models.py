"""Which Whisper models and voices to serve, and what clients may call them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from ferrum_local.audio_types import AudioConfig, SttOptions, TtsOptions
from ferrum_local.config.places import starter_dirs
from ferrum_local.config.resolve import Resolved
from ferrum_local.errors import ConfigError
from ferrum_local.model_names import RESERVED, model_id_from_path, split_model_argument
from ferrum_local.types import ModelSpec

STARTER_WHISPER = "whisper-tiny.en"
VOICES_DIR = "voices"
# OpenAI's voices, the older and the newer ones. Without a table they mean the first voice.
OPENAI_VOICES = (
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage",
    "shimmer", "verse",
)  # fmt: skip


def choose_speech(
    resolved: Resolved, env: Mapping[str, str], *, with_starters: bool = False
) -> AudioConfig:
    """The models that ``--whisper-model`` and ``--voice`` name. Without ``--model``, what is not
    named comes from the starter models, as far as they are there. Files are not opened.

    :param with_starters: take the starter models even if there is a ``--model``.
    :raises ConfigError: two models share a name, or a voice's name leads nowhere.
    """
    settings = resolved.settings
    whisper_models = _specs(settings.whisper_model, resolved.sources["whisper_model"].where)
    voices = _specs(settings.voice, resolved.sources["voice"].where)
    if with_starters or not settings.model:
        places = tuple(map(Path, settings.models_dir)) or starter_dirs(env)
        whisper_models = whisper_models or _starter_whisper(places)
        voices = voices or _starter_voices(places)
    names = _voice_names(settings.voice_name, resolved.sources["voice_name"].where, voices)
    return AudioConfig(
        whisper_models=whisper_models,
        voices=voices,
        stt=SttOptions(
            threads=settings.stt_threads,
            workers=settings.stt_workers,
            max_queue=settings.max_queue,
            max_duration_s=settings.max_audio_s,
        ),
        tts=TtsOptions(threads=settings.tts_threads, max_queue=settings.max_queue, names=names),
    )


def check_speech_files(audio: AudioConfig) -> None:
    """Look at the files, in milliseconds.

    :raises ModelLoadError: for the first that is missing or wrong.
    """
    from ferrum_local.stt.files import check_whisper_dir
    from ferrum_local.tts.files import check_voice_file

    for spec in audio.whisper_models:
        check_whisper_dir(spec.path)
    for spec in audio.voices:
        check_voice_file(spec.path)


def _specs(arguments: Iterable[str], where: str) -> tuple[ModelSpec, ...]:
    specs: dict[str, ModelSpec] = {}
    for argument in arguments:
        name, path = split_model_argument(argument)
        path = os.path.abspath(os.path.expanduser(path))
        if name == RESERVED:
            raise ConfigError(f"{where}: {RESERVED!r} always means the first model; take another")
        id_ = name or model_id_from_path(path.removesuffix(".onnx"))
        if id_ in specs:
            raise ConfigError(f"{where}: two would be called {id_!r}; name one with NAME=PATH")
        specs[id_] = ModelSpec(id=id_, path=path)
    return tuple(specs.values())


def _starter_whisper(places: Iterable[Path]) -> tuple[ModelSpec, ...]:
    for place in places:
        path = place / STARTER_WHISPER
        if (path / "model.bin").is_file():
            return (ModelSpec(id=STARTER_WHISPER, path=os.path.abspath(path)),)
    return ()


def _starter_voices(places: Iterable[Path]) -> tuple[ModelSpec, ...]:
    """Every voice in ``models/voices/``, by name."""
    for place in places:
        found = sorted((place / VOICES_DIR).glob("*.onnx"))
        if found:
            return _specs(map(str, found), VOICES_DIR)
    return ()


def _voice_names(
    arguments: Iterable[str], where: str, voices: tuple[ModelSpec, ...]
) -> dict[str, str]:
    names = dict.fromkeys(OPENAI_VOICES, "")
    ids = {spec.id for spec in voices}
    for argument in arguments:
        name, _, target = (part.strip() for part in argument.partition("="))
        if target not in ids:
            raise ConfigError(
                f"{where}: {argument!r} is for a voice called {target!r}; there is only "
                f"{', '.join(ids) or 'none'}"
            )
        names[name] = target
    return names
