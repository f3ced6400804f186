"""Which models to serve, and the keys that clients need: settings that name files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ferrum_local.config.errors import ConfigError
from ferrum_local.config.model_names import (
    RESERVED,
    is_model_name,
    model_id_from_path,
    split_model_argument,
)
from ferrum_local.config.places import starter_dirs
from ferrum_local.config.resolve import Resolved
from ferrum_local.types import ModelSpec

STARTER_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
STARTER_ALIAS = "smollm2"


def choose_models(resolved: Resolved, env: Mapping[str, str]) -> tuple[ModelSpec, ...]:
    """The models that ``--model`` names, or the starter models. Files are not opened.

    :raises ConfigError: two models share a name, an alias leads nowhere, or there is no model.
    """
    settings = resolved.settings
    where = resolved.sources["model"].where
    paths: dict[str, str] = {}  # id -> path
    names: dict[str, str] = {}  # id or alias -> id
    for argument in settings.model:
        name, path = split_model_argument(argument)
        path = os.path.abspath(os.path.expanduser(path))
        if name == RESERVED:
            raise ConfigError(f"{where}: {RESERVED!r} always means the first model; take another")
        model_id = name or model_id_from_path(path)
        if model_id in paths:
            raise ConfigError(
                f"{where}: two models would be called {model_id!r}: {paths[model_id]} and {path}; "
                "name one with NAME=PATH"
            )
        paths[model_id], names[model_id] = path, model_id
    if not paths:
        may_lack = bool(settings.whisper_model or settings.voice)
        found = _find_starter(settings.models_dir, env, may_lack=may_lack)
        if found is None:
            return ()
        path = found
        model_id = model_id_from_path(path)
        paths[model_id], names[model_id], names[STARTER_ALIAS] = path, model_id, model_id
    _add_aliases(settings.alias, resolved.sources["alias"].where, names, paths)
    return tuple(
        ModelSpec(
            id=model_id,
            path=path,
            aliases=tuple(n for n, target in names.items() if target == model_id and n != model_id),
        )
        for model_id, path in paths.items()
    )


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


def _find_starter(models_dir: str | None, env: Mapping[str, str], *, may_lack: bool) -> str | None:
    """``may_lack``: a server of speech alone is wanted, if there is no starter model."""
    places = (Path(models_dir),) if models_dir else starter_dirs(env)
    for place in places:
        path = place / STARTER_FILE
        if os.path.isfile(path):
            return os.path.abspath(path)
    if may_lack:
        return None
    raise ConfigError(
        f"no model: {STARTER_FILE} is not in {' or '.join(map(str, places))}. "
        "Fetch the starter models with `make setup`, or give a file with --model PATH"
    )


def load_api_keys(resolved: Resolved) -> tuple[str, ...]:
    """All keys that open the server: those of ``--api-key`` and those of ``--api-key-file``.

    :raises ConfigError: the file is unreadable, empty, or has a line that cannot be a key.
    """
    settings = resolved.settings
    if settings.api_key_file is None:
        return settings.api_key
    path = settings.api_key_file
    where = f"{resolved.sources['api_key_file'].where}: {path}"
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: is not UTF-8 text") from None
    keys = list(settings.api_key)
    n_before = len(keys)
    for number, line in enumerate(text.splitlines(), start=1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if not all("!" <= c <= "~" for c in key):
            raise ConfigError(f"{where}: line {number} is not a key of visible ASCII characters")
        keys.append(key)
    if len(keys) == n_before:
        raise ConfigError(f"{where}: has no key in it; put one on each line")
    return tuple(dict.fromkeys(keys))
