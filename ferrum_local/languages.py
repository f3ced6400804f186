"""The languages that Whisper knows: ISO codes and English names."""

from __future__ import annotations

from ferrum_local.errors import InvalidRequest

# Whisper's own table; the order has no meaning.
NAME_BY_CODE = {
    "en": "english", "zh": "chinese", "de": "german", "es": "spanish", "ru": "russian",
    "ko": "korean", "fr": "french", "ja": "japanese", "pt": "portuguese", "tr": "turkish",
    "pl": "polish", "ca": "catalan", "nl": "dutch", "ar": "arabic", "sv": "swedish",
    "it": "italian", "id": "indonesian", "hi": "hindi", "fi": "finnish", "vi": "vietnamese",
    "he": "hebrew", "uk": "ukrainian", "el": "greek", "ms": "malay", "cs": "czech",
    "ro": "romanian", "da": "danish", "hu": "hungarian", "ta": "tamil", "no": "norwegian",
    "th": "thai", "ur": "urdu", "hr": "croatian", "bg": "bulgarian", "lt": "lithuanian",
    "la": "latin", "mi": "maori", "ml": "malayalam", "cy": "welsh", "sk": "slovak",
    "te": "telugu", "fa": "persian", "lv": "latvian", "bn": "bengali", "sr": "serbian",
    "az": "azerbaijani", "sl": "slovenian", "kn": "kannada", "et": "estonian",
    "mk": "macedonian", "br": "breton", "eu": "basque", "is": "icelandic", "hy": "armenian",
    "ne": "nepali", "mn": "mongolian", "bs": "bosnian", "kk": "kazakh", "sq": "albanian",
    "sw": "swahili", "gl": "galician", "mr": "marathi", "pa": "punjabi", "si": "sinhala",
    "km": "khmer", "sn": "shona", "yo": "yoruba", "so": "somali", "af": "afrikaans",
    "oc": "occitan", "ka": "georgian", "be": "belarusian", "tg": "tajik", "sd": "sindhi",
    "gu": "gujarati", "am": "amharic", "yi": "yiddish", "lo": "lao", "uz": "uzbek",
    "fo": "faroese", "ht": "haitian creole", "ps": "pashto", "tk": "turkmen", "nn": "nynorsk",
    "mt": "maltese", "sa": "sanskrit", "lb": "luxembourgish", "my": "myanmar", "bo": "tibetan",
    "tl": "tagalog", "mg": "malagasy", "as": "assamese", "tt": "tatar", "haw": "hawaiian",
    "ln": "lingala", "ha": "hausa", "ba": "bashkir", "jw": "javanese", "su": "sundanese",
    "yue": "cantonese",
}  # fmt: skip

_CODE_BY_NAME = {name: code for code, name in NAME_BY_CODE.items()} | {
    "burmese": "my", "valencian": "ca", "flemish": "nl", "haitian": "ht", "letzeburgesch": "lb",
    "pushto": "ps", "panjabi": "pa", "moldavian": "ro", "moldovan": "ro", "sinhalese": "si",
    "castilian": "es", "mandarin": "zh", "javanese": "jw", "farsi": "fa",
    "norwegian bokmål": "no", "jv": "jw", "nb": "no", "iw": "he", "fil": "tl",
}  # fmt: skip


def language_code(text: str) -> str | None:
    """``de``, ``DE``, ``de-AT``, ``de_DE`` or ``German`` → ``de``; None: not a language known."""
    wanted = text.strip().lower()
    if wanted in NAME_BY_CODE:
        return wanted
    if wanted in _CODE_BY_NAME:
        return _CODE_BY_NAME[wanted]
    base = wanted.replace("_", "-").split("-")[0]
    return base if base in NAME_BY_CODE else _CODE_BY_NAME.get(base)


def wanted_language(text: str | None) -> str | None:
    """The code of a language, or None where none is wanted (empty, ``auto``).

    :raises InvalidRequest: it is no language that is known.
    """
    if text is None or text.strip().lower() in ("", "auto"):
        return None
    code = language_code(text)
    if code is None:
        raise InvalidRequest(
            f"language: expected a code like de or an English name like german, got {text[:60]!r}",
            param="language",
        )
    return code
