"""Settings: flag > ``FERRUM_*`` variable > ``ferrum.toml`` > default; one place, typed.

``options`` is the one table of what can be set; ``resolve`` finds the values and
remembers where each came from; ``models`` turns model arguments into files and names.
"""

from __future__ import annotations

from ferrum_local.config.library import choose_library
from ferrum_local.config.models import choose_models
from ferrum_local.config.options import OPTIONS, Option, Settings
from ferrum_local.config.resolve import Resolved, resolve
from ferrum_local.config.speech_models import check_speech_files, choose_speech
from ferrum_local.errors import ConfigError

__all__ = [
    "OPTIONS",
    "ConfigError",
    "Option",
    "Resolved",
    "Settings",
    "check_speech_files",
    "choose_library",
    "choose_models",
    "choose_speech",
    "resolve",
]
