"""Takes out of a text what is for the eye: Markdown, HTML, emoji; and reads URLs aloud."""

from __future__ import annotations

import html
import re

_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.MULTILINE)
_RULE = re.compile(r"^[ \t]*(?:[-*_=][ \t]*){3,}$", re.MULTILINE)
_HEADING = re.compile(r"^[ \t]{0,3}#{1,6}[ \t]*(.*?)[ \t]*#*[ \t]*$", re.MULTILINE)
_LONE_HASH = re.compile(r"(?<!\S)#{1,6}(?=\s)")
_QUOTE = re.compile(r"^[ \t]*(?:>[ \t]?)+", re.MULTILINE)
_BULLET = re.compile(r"^[ \t]*[-*+•][ \t]+(?:\[[ xX]\][ \t]+)?", re.MULTILINE)
_TABLE_RULE = re.compile(r"^[ \t]*\|?[ \t]*:?-{2,}[-:| \t]*$", re.MULTILINE)
_TABLE_ROW = re.compile(r"^[ \t]*\|(.*)\|[ \t]*$", re.MULTILINE)
_IMAGE_OR_LINK = re.compile(r"!?\[([^\[\]\n]*)\]\([^()\s]*(?:[ \t]+\"[^\"\n]*\")?\)")
_FOOTNOTE = re.compile(r"\[\^[^\]\s]{1,40}\]:?")
_CODE = re.compile(r"`+([^`\n]+)`+")
_EMPHASIS = (
    re.compile(r"(\*{1,3})(?=\S)([^*\n]+?)(?<=\S)\1"),
    re.compile(r"(?<!\w)(_{1,3})(?=\S)([^_\n]+?)(?<=\S)\1(?!\w)"),
    re.compile(r"(~~)(?=\S)([^~\n]+?)(?<=\S)\1"),
)
_BLOCK_TAG = re.compile(r"</?(?:p|div|li|ul|ol|br|h[1-6]|tr|table|blockquote)\b[^<>]*>", re.I)
_HIDDEN = re.compile(r"<(script|style)\b[^<>]*>.*?</\1\s*>|<!--.*?-->", re.I | re.DOTALL)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_ESCAPE = re.compile(r"\\([\\`*_{}\[\]()#+\-.!|>~])")
_URL = re.compile(r"\b(?:https?://|www\.)([^\s<>\"')\]]+)", re.I)
_EMAIL = re.compile(r"\b([\w.+-]{1,64})@((?:[\w-]{1,63}\.){1,8}[a-zA-Z]{2,24})\b")
# Pictographs, dingbats, arrows, box drawing, flags, and what joins or varies them.
_EMOJI = re.compile(
    "[\U0001f000-\U0001faff\u2190-\u21ff\u2300-\u23ff\u2460-\u24ff\u2500-\u27bf\u2900-\u297f"
    "\u2b00-\u2bff\u3030\u303d\ufe00-\ufe0f\u200d\u20e3\U000e0020-\U000e007f]+"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\u2060\ufeff\ufffc\ufffd]+")
_LINE_END = re.compile(r"([^\s.!?:;,…。！？])[ \t]*\n")


def strip_markup(text: str) -> str:
    """``text`` as a person would read it aloud: words only, each line of a list a sentence."""
    text = _CONTROL.sub("", text)
    text = _HIDDEN.sub(" ", text)
    text = _BLOCK_TAG.sub("\n", text)
    text = html.unescape(_TAG.sub("", text)) if "<" in text or "&" in text else text
    for pattern in (_FENCE, _TABLE_RULE, _RULE, _QUOTE, _BULLET, _FOOTNOTE):
        text = pattern.sub("", text)
    text = _HEADING.sub(r"\1", text)
    text = _LONE_HASH.sub("", text)
    text = _TABLE_ROW.sub(_cells, text)
    text = _IMAGE_OR_LINK.sub(r"\1", text)
    text = _CODE.sub(r"\1", text)
    for emphasis in _EMPHASIS:
        text = emphasis.sub(r"\2", text)
    text = _ESCAPE.sub(r"\1", text)
    text = _EMAIL.sub(lambda m: f"{m[1]} at {_dotted(m[2])}", text)
    text = _URL.sub(_spoken_url, text)
    text = _EMOJI.sub(" ", text)
    # Piper takes what stands in double brackets for phonemes.
    text = text.replace("[[", "[").replace("]]", "]")
    # A heading or list item has no full stop, but is read as if it had.
    return _LINE_END.sub(r"\1.\n", text)


def _cells(row: re.Match[str]) -> str:
    return ", ".join(cell.strip() for cell in row[1].split("|") if cell.strip())


def _spoken_url(url: re.Match[str]) -> str:
    """The name of the site; a path is what nobody reads aloud."""
    rest = url[1]
    trail = rest[len(rest.rstrip(".,;:!?")) :]
    host = re.split(r"[/?#]", rest.rstrip(".,;:!?"))[0].split("@")[-1]
    host = re.sub(r":\d+$", "", host).removeprefix("www.")
    return _dotted(host) + trail


def _dotted(host: str) -> str:
    return host.replace(".", " dot ")
