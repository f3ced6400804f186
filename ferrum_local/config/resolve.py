"""Find the value of every option and remember where it came from."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from ferrum_local.config.options import CONFIG_ENV, OPTIONS, Option, Settings
from ferrum_local.config.places import user_config_dir
from ferrum_local.config.values import Value
from ferrum_local.errors import ConfigError
from ferrum_local.model_names import split_model_argument

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_FILE_NAME = "ferrum.toml"
_NAMED_PATHS = ("model", "whisper_model", "voice")  # NAME=PATH

FlagValue: TypeAlias = str | bool | tuple[str, ...] | None


class Source(msgspec.Struct, frozen=True):
    """Where a value came from: ``flag``, ``env``, ``file`` or ``default``, and its name there.

    ``where`` is how an error message begins: the flag, the variable or ``file:key``.
    """

    kind: str
    name: str
    where: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """Settings, the source of each by field, the file that was read, and remarks for a person."""

    settings: Settings
    sources: dict[str, Source]
    config_file: str | None
    notes: tuple[str, ...] = ()


def resolve(
    flags: Mapping[str, FlagValue],
    env: Mapping[str, str],
    *,
    cwd: Path,
    config: str | None = None,
) -> Resolved:
    """Take each option from the first place that has it: flag, variable, file, default.

    A list from a higher place replaces one from a lower place as a whole.

    :param flags: what the command line gave, by :attr:`Option.field`; None or () is not given.
    :param config: ``--config``; None: ``FERRUM_CONFIG``, else ``ferrum.toml`` in ``cwd``, else
        in the user's configuration directory, else no file.
    :raises ConfigError: for the first value that cannot be used.
    """
    config_file = _find_config_file(config, env, cwd)
    table = _read_toml(config_file) if config_file else {}
    values: dict[str, Value] = {}
    sources: dict[str, Source] = {}
    for option in OPTIONS:
        flag = flags.get(option.field)
        if flag is not None and flag != ():
            source = Source("flag", option.flag, option.flag)
            value = _parse(option, flag, source.where)
        elif _is_set(option, env):
            source = Source("env", option.env, option.env)
            value = _parse(option, _from_env(option, env[option.env]), source.where, unquote=True)
        elif config_file and option.toml_key in table:
            source = Source("file", str(config_file), f"{config_file}:{option.toml_key}")
            raw, base = table[option.toml_key], str(config_file.parent)
            value = _parse(option, raw, source.where, unquote=True, base=base)
        else:
            source, value = Source("default", "", option.flag), option.default
        values[option.field], sources[option.field] = value, source
    return Resolved(
        settings=msgspec.convert(values, Settings),
        sources=sources,
        config_file=str(config_file) if config_file else None,
        notes=tuple(_misspelt_variables(env)),
    )


def _find_config_file(config: str | None, env: Mapping[str, str], cwd: Path) -> Path | None:
    where = "--config"
    if config is None and env.get(CONFIG_ENV):
        config, where = _unquoted(env[CONFIG_ENV]), CONFIG_ENV
    if config is not None:
        path = cwd / os.path.expanduser(config)
        # Anything readable will do: /dev/null is a way to have no file at all.
        if os.path.isdir(path) or not os.path.exists(path):
            what = "is a directory" if os.path.isdir(path) else "no such file"
            raise ConfigError(f"{where}: {config}: {what}")
        return path
    for path in (cwd / CONFIG_FILE_NAME, user_config_dir(env) / CONFIG_FILE_NAME):
        if os.path.isfile(path):
            return path
    return None


def _read_toml(path: Path) -> dict[str, object]:
    try:
        # utf-8-sig: Windows editors begin files with a byte order mark.
        table: dict[str, object] = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        hint = ""
        if "escape" in str(error) or "\\" in str(error) or "hex" in str(error):
            hint = "; write Windows paths in single quotes, 'C:\\models\\x.gguf'"
        raise ConfigError(f"{path}: is not valid TOML: {_one_line(str(error))}{hint}") from None
    known = {option.toml_key for option in OPTIONS}
    for key in table:
        if key not in known and isinstance(table[key], dict):
            raise ConfigError(f"{path}: no sections are used; write what [{key}] has at top level")
        if key not in known:
            raise ConfigError(f"{path}: unknown key {key!r}{_suggestion(key, known)}")
    return table


def _suggestion(key: str, known: set[str]) -> str:
    near = difflib.get_close_matches(key.lower().replace("-", "_"), sorted(known), 1, 0.4)
    if near:
        return f"; did you mean {near[0]!r}?"
    return "; known keys are " + ", ".join(sorted(known))


def _is_set(option: Option, env: Mapping[str, str]) -> bool:
    """An empty variable is as good as none, except where that would open the server to all."""
    text = env.get(option.env)
    if text is None or text.strip():
        return text is not None
    if option.secret or option.field in ("api_key_file", "token_file"):
        raise ConfigError(f"{option.env}: is set but empty; give it a value or unset it")
    return False


def _from_env(option: Option, text: str) -> object:
    """Lists are separated by commas; one path may hold commas if that file exists."""
    if not option.many:
        return text
    if option.path and os.path.exists(split_model_argument(_unquoted(text))[1]):
        return [text]
    return [item for item in text.split(",") if item.strip()]


def _parse(
    option: Option, raw: object, where: str, *, unquote: bool = False, base: str | None = None
) -> Value:
    if not option.many:
        return _parse_one(option, raw, where, unquote, base)
    items = raw if isinstance(raw, (list, tuple)) else [raw]
    return tuple(str(_parse_one(option, item, where, unquote, base)) for item in items)


def _parse_one(option: Option, raw: object, where: str, unquote: bool, base: str | None) -> Value:
    if isinstance(raw, str) and unquote and option.path:
        raw = _unquoted(raw)
    try:
        if not isinstance(raw, (str, int, float, bool)):
            raise ValueError
        value = option.kind.parse(raw)
    except (ValueError, OverflowError):
        raise ConfigError(f"{where}: expected {option.kind.expected}{_got(option, raw)}") from None
    if option.path and isinstance(value, str):
        value = _located(option, value, unquote, base)
    return value


def _located(option: Option, text: str, unquote: bool, base: str | None) -> str:
    """A path as the other layers need it: ``~`` expanded, relative to the file that names it."""
    name, path = split_model_argument(text, base) if option.field in _NAMED_PATHS else (None, text)
    path = os.path.expanduser(_unquoted(path) if unquote else path)
    if base is not None:
        path = os.path.join(base, path)
    return path if name is None else f"{name}={path}"


def _got(option: Option, raw: object) -> str:
    if option.secret:  # a mistyped key is still a key
        return ""
    shown = "a table" if isinstance(raw, dict) else repr(raw)
    return f", got {shown if len(shown) <= 80 else shown[:77] + '...'}"


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _misspelt_variables(env: Mapping[str, str]) -> list[str]:
    known = [option.env for option in OPTIONS] + [CONFIG_ENV]
    notes = []
    for name in sorted(env):
        if name.startswith("FERRUM_") and name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.85)
            if near:
                notes.append(f"{name} is not a known variable; did you mean {near[0]}?")
    return notes
