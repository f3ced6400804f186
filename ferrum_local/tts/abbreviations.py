"""English abbreviations, units and signs as words. espeak-ng reads plain numbers itself."""

from __future__ import annotations

import re

# With the full stop, which ends no sentence here.
TITLES = (
    "Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Jr", "Sr", "vs", "No", "Gen", "Col", "Lt", "Sgt",
    "Capt", "Rev", "Hon", "Mt", "Inc", "Ltd", "Co", "approx", "Fig", "fig",
)  # fmt: skip
_WORDS = {
    "Mr.": "Mister", "Mrs.": "Missus", "Ms.": "Miz", "Dr.": "Doctor", "Prof.": "Professor",
    "vs.": "versus", "e.g.": "for example", "i.e.": "that is", "etc.": "et cetera",
    "approx.": "approximately", "Jr.": "Junior", "Sr.": "Senior", "Inc.": "Incorporated",
    "Ltd.": "Limited", "No.": "Number", "Gen.": "General", "Capt.": "Captain", "Mt.": "Mount",
}  # fmt: skip
_WORD = re.compile(
    r"(?<![\w.])(" + "|".join(re.escape(w) for w in _WORDS) + r")(?=(\s+[a-z0-9A-Z])|[\s,;:)]|$)"
)
_NUMBER = r"(\d+(?:,\d{3})*)(?:\.(\d{1,2}))?"
_MONEY = re.compile(rf"([$€£]){_NUMBER}(?![\d.]*\d)(?:\s?(thousand|million|billion|trillion))?")
_COINS = {"$": ("dollar", "cent"), "€": ("euro", "cent"), "£": ("pound", "penny")}
_UNITS = {
    "km/h": "kilometers per hour", "mph": "miles per hour", "km": "kilometers",
    "cm": "centimeters", "mm": "millimeters", "kg": "kilograms", "mg": "milligrams",
    "GHz": "gigahertz", "MHz": "megahertz", "kHz": "kilohertz", "Hz": "hertz",
    "TB": "terabytes", "GB": "gigabytes", "MB": "megabytes", "KB": "kilobytes",
    "kB": "kilobytes", "ms": "milliseconds", "°C": "degrees Celsius",
    "°F": "degrees Fahrenheit", "°": "degrees", "%": "percent", "kWh": "kilowatt hours",
}  # fmt: skip
_UNIT = re.compile(
    r"(\d)\s?(" + "|".join(sorted(map(re.escape, _UNITS), key=len, reverse=True)) + r")(?![\w/])"
)
_SIGNS = (
    (re.compile(r"\s&\s"), " and "),
    (re.compile(r"(?<=\d)\s?[×x]\s?(?=\d)"), " by "),
    (re.compile(r"(?<=\d)\s?–\s?(?=\d)"), " to "),
    # With a hyphen only what is surely no date and no telephone number.
    (re.compile(r"(?<![\w-])(\d{1,2})-(?=\d{1,2}(?![\w-]))"), r"\1 to "),
    (re.compile(r"\s\+\s"), " plus "),
    (re.compile(r"\s=\s"), " equals "),
    (re.compile(r"#(?=\d)"), "number "),
)


def spell_out(text: str) -> str:
    """English ``text`` with what espeak-ng reads as letters or skips written as words."""
    text = _MONEY.sub(_money, text)
    text = _UNIT.sub(lambda m: f"{m[1]} {_UNITS[m[2]]}", text)
    text = _WORD.sub(_word, text)
    for sign, word in _SIGNS:
        text = sign.sub(word, text)
    return text


def _word(match: re.Match[str]) -> str:
    if match[1] == "No." and not (match[2] or "").strip().isdigit():
        return match[0]  # the answer, not a number
    word = _WORDS[match[1]]
    # "etc." may end a sentence; what follows then begins with a capital, or nothing follows.
    ends = match[1] == "etc." and (match[2] is None or match[2].strip()[:1].isupper())
    return word + "." if ends and not match.string[match.end() :].startswith((",", ";")) else word


def _money(match: re.Match[str]) -> str:
    sign, whole, small, scale = match.groups()
    unit, coin = _COINS[sign]
    if scale:
        return f"{whole}{'.' + small if small else ''} {scale} {unit}s"
    cents = int(small.ljust(2, "0")) if small else 0
    many_coins = "pence" if coin == "penny" else coin + "s"
    spoken = f"{whole} {unit}{'' if whole == '1' else 's'}"
    if not cents:
        return spoken
    spoken_cents = f"{cents} {coin if cents == 1 else many_coins}"
    return spoken_cents if whole == "0" else f"{spoken} and {spoken_cents}"
