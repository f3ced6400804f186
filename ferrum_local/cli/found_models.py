"""The models that commands can use without being told: those of the settings, and those beside
the starter models."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from ferrum_local.types import ModelSpec

if TYPE_CHECKING:
    from ferrum_local.config import Resolved

CHAT, EMBEDDING, IMAGE_EMBEDDING = "chat", "embedding", "image-embedding"
TRANSCRIPTION, SPEECH = "transcription", "speech"
LIST_HINT = "`ferrum-local models list` shows those that there are"
# Of those that the registry tells apart, the ones that somebody asks for by name.
_KINDS = {
    **{kind: kind for kind in (CHAT, EMBEDDING, IMAGE_EMBEDDING, TRANSCRIPTION, SPEECH)},
    "rerank": EMBEDDING,
    "unknown": CHAT,  # damaged: told when it is looked at
}


class FoundModel(msgspec.Struct, frozen=True):
    """A model's file or directory. ``problem``: why it cannot be used, from a look at it."""

    kind: str
    spec: ModelSpec
    problem: str | None = None

    @property
    def size_bytes(self) -> int:
        from ferrum_local.registry.facts import size_bytes_of

        return size_bytes_of(self.spec.path)


def find_models(resolved: Resolved, env: Mapping[str, str]) -> tuple[FoundModel, ...]:
    """What ``serve`` would serve first, then what else lies beside it; each once."""
    found: dict[str, FoundModel] = {}
    for model in (*_configured(resolved, env), *_in_places(resolved, env)):
        found.setdefault(os.path.realpath(model.spec.path), model)
    return tuple(found.values())


def looked_at(kind: str, spec: ModelSpec) -> FoundModel:
    """With what its header or directory says, in milliseconds."""
    from ferrum_local.cli.serve import check_models
    from ferrum_local.errors import ModelLoadError
    from ferrum_local.stt.files import check_whisper_dir
    from ferrum_local.tts.files import check_voice_file

    try:
        if kind == TRANSCRIPTION:
            check_whisper_dir(spec.path)
        elif kind == SPEECH:
            check_voice_file(spec.path)
        else:
            check_models((spec,))
    except ModelLoadError as error:
        return FoundModel(kind, spec, error.message)
    return FoundModel(kind, spec)


def model_at(argument: str, known: tuple[FoundModel, ...]) -> FoundModel:
    """The model that a person means: a name of a known one, or a path whatever lies there.

    What is missing or wrong becomes its ``problem``.
    """
    from ferrum_local.errors import ModelLoadError
    from ferrum_local.model_names import model_id_from_path
    from ferrum_local.registry.facts import read_facts
    from ferrum_local.registry.registry import short_names
    from ferrum_local.registry.store import form_of

    for model in known:
        if argument in (model.spec.id, *model.spec.aliases):
            return model
    called_so = [model for model in known if argument in short_names(model.spec.id)]
    if len(called_so) == 1:
        return called_so[0]
    path = os.path.abspath(os.path.expanduser(argument))
    id_ = model_id_from_path(path.removesuffix(".onnx"))
    try:
        form = form_of(path)
    except ModelLoadError as error:
        problem = error.message
        if not os.path.dirname(argument) and not os.path.lexists(path):
            problem = f"no model of this name ({LIST_HINT}), and no such file: {argument}"
        return FoundModel(CHAT, ModelSpec(id=id_, path=path), problem)
    kind = _KINDS.get(read_facts(path, form).kind, CHAT)
    if kind in (TRANSCRIPTION, SPEECH):
        return looked_at(kind, ModelSpec(id=id_, path=path))
    return looked_at(kind, ModelSpec(id=id_, path=path, kind=kind))


def _configured(resolved: Resolved, env: Mapping[str, str]) -> Iterator[FoundModel]:
    from ferrum_local.config import ConfigError, choose_models, choose_speech

    try:
        models = choose_models(resolved, env)
    except ConfigError:  # no starter model: what there is instead is found below
        models = ()
    for spec in models:
        yield looked_at(spec.kind, spec)
    audio = choose_speech(resolved, env, with_starters=True)
    for kind, specs in ((TRANSCRIPTION, audio.whisper_models), (SPEECH, audio.voices)):
        for spec in specs:
            yield looked_at(kind, spec)


def _in_places(resolved: Resolved, env: Mapping[str, str]) -> Iterator[FoundModel]:
    from ferrum_local.config.library import registry_of

    for model in registry_of(resolved, env).scan():
        kind = _KINDS.get(model.kind)
        if kind is not None:
            spec = ModelSpec(id=model.id, path=model.path, aliases=model.aliases, kind=kind)
            yield FoundModel(kind, spec, model.fault and f"{model.path}: {model.fault}")
