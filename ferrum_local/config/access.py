"""Settings of access that name files and directories, or contradict each other."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ferrum_local.config.places import user_data_dir
from ferrum_local.config.resolve import Resolved
from ferrum_local.errors import ConfigError
from ferrum_local.http.keys import BadKeyFile, Key, parse_key_file


def check_access(resolved: Resolved) -> None:
    """:raises ConfigError: the file of keys or the directory of media cannot be used, or what is
    allowed would need the network that ``--offline`` rules out."""
    settings = resolved.settings
    if settings.api_key_file is not None:
        _read_key_file(settings.api_key_file, resolved.sources["api_key_file"].where)
    if settings.media_dir is not None and not os.path.isdir(settings.media_dir):
        where = resolved.sources["media_dir"].where
        raise ConfigError(f"{where}: {settings.media_dir}: no such directory")
    if settings.offline and settings.allow_remote_media:
        raise ConfigError(
            f"{resolved.sources['allow_remote_media'].where}: nothing can be fetched with --offline"
        )


def first_api_key(resolved: Resolved) -> str | None:
    """A key that a server with these settings takes; None: it asks for none.

    :raises ConfigError: the file of keys cannot be used.
    """
    settings = resolved.settings
    if settings.api_key:
        return settings.api_key[0]
    if settings.api_key_file is None:
        return None
    keys = _read_key_file(settings.api_key_file, resolved.sources["api_key_file"].where)
    return keys[0].key


def instance_dir(resolved: Resolved, env: Mapping[str, str]) -> str | None:
    """The directory of which there may be one server; None: any number."""
    settings = resolved.settings
    if not settings.single_instance:
        return None
    return settings.data_dir or str(user_data_dir(env))


def _read_key_file(path: str, where: str) -> tuple[Key, ...]:
    try:
        with open(path, "rb") as file:
            return parse_key_file(file.read())
    except OSError as error:
        raise ConfigError(f"{where}: {path}: cannot be read ({error.strerror})") from None
    except BadKeyFile as error:
        raise ConfigError(f"{where}: {path}: {error}") from None
