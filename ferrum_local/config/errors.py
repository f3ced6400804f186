"""The one error of configuration."""

from __future__ import annotations

from ferrum_local.errors import FerrumError


class ConfigError(FerrumError):
    """A setting cannot be used; the message is one line that names where it came from."""

    code = "invalid_configuration"
