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
    """What a server offers: everything, or with ``--model`` and its kin ``--models-dir`` alone.

    Who names a model gets that model, and no other that happens to lie about.
    """
    settings = resolved.settings
    named = settings.model or settings.embedding_model or settings.image_embedding_model
    return LibraryOptions(
        directories=_given_dirs(resolved) if named else _all_dirs(resolved, env, cwd or Path.cwd()),
        cache_path=cache_path(env),
        keep_alive_s=settings.keep_alive_s,
    )


def registry_of(resolved: Resolved, env: Mapping[str, str], *, cwd: Path | None = None) -> Registry:
    """Of all that commands can name, whatever the settings name besides."""
    return Registry(_all_dirs(resolved, env, cwd or Path.cwd()), cache_path=cache_path(env))


def _all_dirs(resolved: Resolved, env: Mapping[str, str], cwd: Path) -> tuple[str, ...]:
    """Those of ``--models-dir`` first, then ``models/`` here and in the user's data directory.

    Without ``--models-dir`` also where ``make setup`` puts the starter models.
    """
    given = _given_dirs(resolved)
    usual = (cwd / MODELS, *((user_data_dir(env) / MODELS,) if given else starter_dirs(env)))
    return tuple(dict.fromkeys((*given, *map(os.path.abspath, usual))))


def _given_dirs(resolved: Resolved) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(os.path.abspath, resolved.settings.models_dir)))


def cache_path(env: Mapping[str, str]) -> str:
    """The file that remembers what model files say of themselves."""
    return str(user_cache_dir(env) / "models.json")


def has_models(library: LibraryOptions) -> bool:
    """Whether there is anything in it that could be loaded."""
    registry = Registry(library.directories, cache_path=library.cache_path)
    return any(model.is_served for model in registry.scan())
