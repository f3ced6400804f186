"""What an option is: its names, its kind of value, its default and its help."""

from __future__ import annotations

import msgspec

from ferrum_local.config.values import Kind, Value


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One setting. ``field`` is its name in ``Settings``, with the unit where it has one.

    ``many``: may be given several times. ``secret``: never printed. ``path``: a file or
    directory, taken from the configuration file's own directory when it is given there.
    """

    name: str
    kind: Kind
    default: Value
    help: str
    group: str
    field: str
    many: bool = False
    secret: bool = False
    path: bool = False

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def env(self) -> str:
        return "FERRUM_" + self.toml_key.upper()

    @property
    def toml_key(self) -> str:
        return self.name.replace("-", "_")
