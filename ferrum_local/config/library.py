"""Which directories hold models that are loaded when they are first asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ferrum_local.config.places import starter_dirs, user_cache_dir, user_data_dir
from ferrum_local.config.resolve import Resolved
from ferrum_local.registry.registry import Registry
from ferrum_local.types import LibraryOptions

MODELS = "models"


def choose_library(
    resolved: Resolved, env: Mapping[str, str], *, cwd: Path | None = None
) -> LibraryOptions:
    """The directories of ``--models-dir``, and without ``--model`` and its kin the usual ones.

    Who names a model gets that model, and no other that happens to lie about.
    """
    settings = resolved.settings
    named = settings.model or settings.embedding_model or settings.image_embedding_model
    directories = _given_dirs(resolved)
    if not named:
        directories += usual_dirs(env, cwd or Path.cwd(), with_starters=not settings.models_dir)
    return LibraryOptions(
        directories=tuple(dict.fromkeys(directories)),
        cache_path=cache_path(env),
        keep_alive_s=settings.keep_alive_s,
    )


def usual_dirs(env: Mapping[str, str], cwd: Path, *, with_starters: bool = True) -> tuple[str, ...]:
    """``models/`` here and in the user's data directory.

    :param with_starters: also where ``make setup`` puts the starter models.
    """
    more = starter_dirs(env) if with_starters else (user_data_dir(env) / MODELS,)
    return tuple(dict.fromkeys(os.path.abspath(place) for place in (cwd / MODELS, *more)))


def cache_path(env: Mapping[str, str]) -> str:
    """The file that remembers what model files say of themselves."""
    return str(user_cache_dir(env) / "models.json")


def registry_of(resolved: Resolved, env: Mapping[str, str], *, cwd: Path | None = None) -> Registry:
    """Of all that commands can name: what lies in ``--models-dir``, then in the usual directories,
    whatever else is named."""
    directories = (*_given_dirs(resolved), *usual_dirs(env, cwd or Path.cwd()))
    return Registry(tuple(dict.fromkeys(directories)), cache_path=cache_path(env))


def _given_dirs(resolved: Resolved) -> tuple[str, ...]:
    return tuple(os.path.abspath(directory) for directory in resolved.settings.models_dir)


def has_models(library: LibraryOptions) -> bool:
    """Whether there is anything in it that could be loaded."""
    registry = Registry(library.directories, cache_path=library.cache_path)
    return any(model.is_served for model in registry.scan())
