"""How families of models write calls of tools and reasoning: parsers, grammars, detection.

:func:`detect` chooses a :class:`Dialect` by a model's chat template. Everything here is pure text
work.
"""

from __future__ import annotations

from ferrum_local.llm.dialects.detection import detect
from ferrum_local.llm.dialects.dialect import Dialect
from ferrum_local.llm.dialects.interface import OutputParser, ParsedDelta

__all__ = ["Dialect", "OutputParser", "ParsedDelta", "detect"]
