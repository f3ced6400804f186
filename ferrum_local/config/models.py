"""Which models to serve: the settings that name them, and the starter models."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ferrum_local.config.library import choose_library, has_models
from ferrum_local.config.places import starter_dirs
from ferrum_local.config.resolve import Resolved
from ferrum_local.errors import ConfigError
from ferrum_local.model_names import (
    RESERVED,
    is_model_name,
    model_id_from_path,
    split_model_argument,
)
from ferrum_local.types import LoraAdapter, ModelSpec

STARTER_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
STARTER_ALIAS = "smollm2"


class _Chosen(NamedTuple):
    path: str
    kind: str


class _Starter(NamedTuple):
    """One of the models that are served when none was asked for."""

    path: str
    kind: str
    aliases: tuple[str, ...]

    def at(self, place: Path) -> _Starter:
        return self._replace(path=os.path.abspath(place / self.path))


STARTERS = (
    _Starter(STARTER_FILE, "chat", (STARTER_ALIAS,)),
    _Starter("all-minilm-l6-v2.f16.gguf", "embedding", ("all-minilm-l6-v2", "minilm")),
)


def choose_models(resolved: Resolved, env: Mapping[str, str]) -> tuple[ModelSpec, ...]:
    """The models that ``--model`` and its kin name, or the starter models. Files are not opened.

    :raises ConfigError: two models share a name, an alias leads nowhere, or there is no model.
    """
    settings = resolved.settings
    models: dict[str, _Chosen] = {}  # by id
    names: dict[str, str] = {}  # id or alias -> id
    for kind, field, arguments in (
        ("chat", "model", settings.model),
        ("embedding", "embedding_model", settings.embedding_model),
        ("image-embedding", "image_embedding_model", settings.image_embedding_model),
    ):
        for argument in arguments:
            _add_model(argument, kind, resolved.sources[field].where, models)
    names.update((model_id, model_id) for model_id in models)
    if not models:
        speaks = bool(settings.whisper_model or settings.voice)
        may_lack = speaks or has_models(choose_library(resolved, env))
        for starter in _find_starters(settings.models_dir, env, may_lack=may_lack):
            model_id = model_id_from_path(starter.path)
            models[model_id] = _Chosen(starter.path, starter.kind)
            names.update(dict.fromkeys((model_id, *starter.aliases), model_id))
    projectors = _projectors(settings.mmproj, resolved.sources["mmproj"].where, models)
    paths = {model_id: model.path for model_id, model in models.items()}
    _add_aliases(settings.alias, resolved.sources["alias"].where, names, paths)
    first_chat = next((i for i, model in models.items() if model.kind == "chat"), None)
    loras = tuple(_lora(argument) for argument in settings.lora)
    if loras and first_chat is None:
        raise ConfigError(f"{resolved.sources['lora'].where}: there is no chat model to put it on")
    return tuple(
        ModelSpec(
            id=model_id,
            path=model.path,
            aliases=tuple(n for n, target in names.items() if target == model_id and n != model_id),
            kind=model.kind,
            mmproj=projectors.get(model_id),
            loras=loras if model_id == first_chat else (),
        )
        for model_id, model in models.items()
    )


def _lora(argument: str) -> LoraAdapter:
    """``PATH`` or ``PATH=SCALE``; what follows a ``=`` that is no number is part of the path."""
    path, equals, text = argument.rpartition("=")
    try:
        scale = float(text) if equals and path else math.nan
    except ValueError:
        scale = math.nan
    if not math.isfinite(scale):
        path, scale = argument, 1.0
    return LoraAdapter(path=os.path.abspath(os.path.expanduser(path)), scale=scale)


def _add_model(argument: str, kind: str, where: str, models: dict[str, _Chosen]) -> None:
    name, path = split_model_argument(argument)
    path = os.path.abspath(os.path.expanduser(path))
    if name == RESERVED:
        raise ConfigError(f"{where}: {RESERVED!r} always means the first model; take another")
    model_id = name or model_id_from_path(path)
    if model_id in models:
        raise ConfigError(
            f"{where}: two models would be called {model_id!r}: {models[model_id].path} and "
            f"{path}; name one with NAME=PATH"
        )
    models[model_id] = _Chosen(path, kind)


def _projectors(
    arguments: tuple[str, ...], where: str, models: Mapping[str, _Chosen]
) -> dict[str, str]:
    """Paths of projectors, by the id of the embedding model that each is for."""
    embedding = [model_id for model_id, model in models.items() if model.kind == "embedding"]
    found: dict[str, str] = {}
    for argument in arguments:
        name, path = split_model_argument(argument)
        if not embedding or (name is not None and name not in embedding):
            raise ConfigError(
                f"{where}: {argument!r} is for an embedding model"
                + (f" called {name!r}" if name else "")
                + (f"; there is only {', '.join(embedding)}" if embedding else "; there is none")
            )
        model_id = name or embedding[0]
        if model_id in found:
            raise ConfigError(f"{where}: {model_id!r} would have two projectors")
        found[model_id] = os.path.abspath(os.path.expanduser(path))
    return found


def _add_aliases(
    arguments: tuple[str, ...], where: str, names: dict[str, str], paths: Mapping[str, str]
) -> None:
    for argument in arguments:
        alias, _, target = (part.strip() for part in argument.partition("="))
        if not is_model_name(alias) or alias == RESERVED:
            raise ConfigError(f"{where}: {alias!r} cannot be used as a model's name")
        if target not in names:
            raise ConfigError(
                f"{where}: {argument!r} is for a model called {target!r}; there is only "
                + ", ".join(paths)
            )
        if names.get(alias, names[target]) != names[target]:
            raise ConfigError(
                f"{where}: {alias!r} is already the name of {names[alias]!r}; "
                f"it cannot be {names[target]!r} too"
            )
        names[alias] = names[target]


def _find_starters(
    models_dirs: Sequence[str], env: Mapping[str, str], *, may_lack: bool
) -> list[_Starter]:
    """The starter models of the first place that has the one for chat.

    :param may_lack: there is something else to serve, if there is no starter model.
    """
    try:
        place = Path(find_starter("chat", models_dirs, env)).parent
    except ConfigError:
        if may_lack:
            return []
        raise
    here = (starter.at(place) for starter in STARTERS)
    return [starter for starter in here if os.path.isfile(starter.path)]


def find_starter(kind: str, models_dirs: Sequence[str], env: Mapping[str, str]) -> str:
    """The path of the starter model of a kind.

    :raises ConfigError: it has not been fetched.
    """
    places = tuple(map(Path, models_dirs)) or starter_dirs(env)
    wanted = next(starter for starter in STARTERS if starter.kind == kind)
    for place in places:
        path = wanted.at(place).path
        if os.path.isfile(path):
            return path
    raise ConfigError(
        f"no model: {wanted.path} is not in {' or '.join(map(str, places))}. "
        "Fetch the starter models with `ferrum-local models pull` (`make setup` in a checkout), or "
        "give a file with --model PATH"
    )
