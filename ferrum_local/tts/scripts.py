"""Which writing systems a language's voice can read."""

from __future__ import annotations

import unicodedata

_LATIN = frozenset({"LATIN"})
_SCRIPTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("ru", "uk", "bg", "mk", "be", "tt", "mn", "tg", "ba"),
                    frozenset({"CYRILLIC", "LATIN"})),
    **dict.fromkeys(("sr", "kk", "uz", "az"), frozenset({"CYRILLIC", "LATIN"})),
    **dict.fromkeys(("ar", "fa", "ur", "ps", "sd"), frozenset({"ARABIC"})),
    **dict.fromkeys(("hi", "mr", "ne", "sa"), frozenset({"DEVANAGARI"})),
    "el": frozenset({"GREEK"}), "he": frozenset({"HEBREW"}), "yi": frozenset({"HEBREW"}),
    "zh": frozenset({"CJK"}), "yue": frozenset({"CJK"}),
    "ja": frozenset({"CJK", "HIRAGANA", "KATAKANA"}), "ko": frozenset({"HANGUL", "CJK"}),
    "th": frozenset({"THAI"}), "ka": frozenset({"GEORGIAN"}), "hy": frozenset({"ARMENIAN"}),
    "ta": frozenset({"TAMIL"}), "te": frozenset({"TELUGU"}), "ml": frozenset({"MALAYALAM"}),
    "kn": frozenset({"KANNADA"}), "bn": frozenset({"BENGALI"}), "gu": frozenset({"GUJARATI"}),
    "pa": frozenset({"GURMUKHI"}), "si": frozenset({"SINHALA"}), "my": frozenset({"MYANMAR"}),
    "km": frozenset({"KHMER"}), "lo": frozenset({"LAO"}), "am": frozenset({"ETHIOPIC"}),
}  # fmt: skip


def can_say_any(text: str, language: str) -> bool:
    """Whether there is a digit in ``text``, or a letter that ``language`` is written with."""
    scripts = _SCRIPTS.get(language, _LATIN)
    return any(c.isdecimal() or (c.isalpha() and _script(c) in scripts) for c in text)


def _script(character: str) -> str:
    return unicodedata.name(character, "").split(" ", 1)[0].split("-", 1)[0]
