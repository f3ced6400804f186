"""Where a user's configuration and models live on each operating system."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

APP_NAME = "ferrum-local"


def user_config_dir(env: Mapping[str, str], platform: str = sys.platform) -> Path:
    """``~/.config/ferrum-local``, or what the platform and ``XDG_CONFIG_HOME`` say."""
    return _place(env, platform, "XDG_CONFIG_HOME", ".config", "APPDATA", "Roaming")


def user_data_dir(env: Mapping[str, str], platform: str = sys.platform) -> Path:
    """``~/.local/share/ferrum-local``, or what the platform and ``XDG_DATA_HOME`` say."""
    return _place(env, platform, "XDG_DATA_HOME", ".local/share", "LOCALAPPDATA", "Local")


def user_cache_dir(env: Mapping[str, str], platform: str = sys.platform) -> Path:
    """``~/.cache/ferrum-local``, or what the platform and ``XDG_CACHE_HOME`` say."""
    if platform == "darwin" and not env.get("XDG_CACHE_HOME"):
        return Path(os.path.expanduser("~")) / "Library" / "Caches" / APP_NAME
    place = _place(env, platform, "XDG_CACHE_HOME", ".cache", "LOCALAPPDATA", "Local")
    return place / "Cache" if platform == "win32" else place


def starter_dirs(env: Mapping[str, str]) -> tuple[Path, ...]:
    """Where the starter models may have been fetched to, likeliest first."""
    import ferrum_local

    project = Path(ferrum_local.__file__).resolve().parent.parent
    places = (project / "models", user_data_dir(env) / "models")
    # An installed package lies among others: a directory "models" there is somebody else's.
    return places if (project / "pyproject.toml").is_file() else places[1:]


def _place(
    env: Mapping[str, str],
    platform: str,
    xdg_variable: str,
    xdg_default: str,
    windows_variable: str,
    windows_default: str,
) -> Path:
    home = Path(os.path.expanduser("~"))
    if platform == "win32":
        base = env.get(windows_variable)
        return Path(base or home / "AppData" / windows_default) / APP_NAME
    if env.get(xdg_variable):
        return Path(env[xdg_variable]) / APP_NAME
    if platform == "darwin":
        return home / "Library" / "Application Support" / APP_NAME
    return home / xdg_default / APP_NAME
