"""What is read aloud of a text: words, not marks; in parts that can be spoken one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.errors import InvalidRequest, Unsupported
from ferrum_local.tts.abbreviations import spell_out
from ferrum_local.tts.clauses import EARLY_CHARS, MAX_PART_CHARS, paragraphs, parts, sentences
from ferrum_local.tts.markup import strip_markup
from ferrum_local.tts.scripts import can_say_any
from ferrum_local.tts.ssml import is_ssml, parse_ssml

texts = st.text(alphabet=st.sampled_from("ab .,;:!?—-\n\"')1"), max_size=1200)


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("**bold** and *thin*, __both__ ~~gone~~", "bold and thin, both gone"),
        ("# Title\n\nText.", "Title.\n\nText."),
        ("<ul><li>one</li><li>two</li></ul>", "one.\n\ntwo."),
        ("use `code` here", "use code here"),
        ("see https://www.example.com/a/b?c=d.", "see example dot com."),
        ("[the docs](https://x.org/y) and ![a cat](cat.png)", "the docs and a cat"),
        ("- milk\n- [ ] bread\n* eggs", "milk.\nbread.\neggs"),
        ("> quoted\n> twice", "quoted.\ntwice"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "a, b.\n\n1, 2"),
        ("```python\nprint(1)\n```", "print(1)."),
        ("Hi 🙂 there 👩‍👩‍👧!", "Hi   there  !"),
        ("ask me@mail.example.org", "ask me at mail dot example dot org"),
        ("fish &amp; chips, a &lt; b", "fish & chips, a < b"),
        ("<script>alert(1)</script>Hello<!-- no -->", " Hello "),
    ],
)
def test_tts_09_markup_is_not_read(text: str, spoken: str) -> None:
    assert strip_markup(text).strip() == spoken.strip()


@pytest.mark.parametrize(
    "text", ["2 * 3 * 4", "snake_case_name", "a < b and c > d", "C# and F#", "5-6", "(really)"]
)
def test_what_only_looks_like_markup_stays(text: str) -> None:
    assert strip_markup(text) == text


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("It costs $5.50, or $1, or €3 million.",
         "It costs 5 dollars and 50 cents, or 1 dollar, or 3 million euros."),
        ("Dr. Who vs. Mr. X", "Doctor Who versus Mister X"),
        ("fruit, e.g. apples, pears, etc.", "fruit, for example apples, pears, et cetera."),
        ("20% at 30 °C and 5 km/h", "20 percent at 30 degrees Celsius and 5 kilometers per hour"),
        ("£0.01 and £2.02", "1 penny and 2 pounds and 2 pence"),
        ("10 GB & 3×4", "10 gigabytes and 3 by 4"),
        ("No. I said no. But No. 5 is fine.", "No. I said no. But Number 5 is fine."),
        ("On 2024-05-06 call 555-1234.", "On 2024-05-06 call 555-1234."),
        ("pages 3–5, 5-10 times", "pages 3 to 5, 5 to 10 times"),
    ],
)  # fmt: skip
def test_abbreviations_and_signs_are_words(text: str, spoken: str) -> None:
    assert spell_out(text) == spoken


def test_sentences_end_where_a_person_would_pause() -> None:
    text = 'Dr. Who said "Hi there." He left! J. R. Tolkien? Yes... ok. 3.14 is pi'
    assert sentences(text) == [
        'Dr. Who said "Hi there."', "He left!", "J. R. Tolkien?", "Yes...", "ok.", "3.14 is pi",
    ]  # fmt: skip


def test_the_first_part_is_the_first_clause_where_it_is_wanted_soon() -> None:
    sentence = "When the sun went down behind the hills, the people came out, and sang."
    assert parts(sentence) == [sentence]
    first, *rest = parts(sentence, early=True)
    assert first == "When the sun went down behind the hills,"
    assert rest == ["the people came out, and sang."]
    assert parts("Well, that is short.", early=True) == ["Well, that is short."]
    assert len(parts("word " * 60, early=True)[0]) <= EARLY_CHARS


@given(texts, st.booleans())
def test_parts_are_bounded_and_nothing_is_lost(text: str, early: bool) -> None:
    found = [
        part
        for paragraph in paragraphs(text)
        for sentence in sentences(paragraph)
        for part in parts(sentence, early=early)
    ]
    assert all(part.strip() and len(part) <= MAX_PART_CHARS for part in found)
    assert "".join("".join(found).split()) == "".join(text.split())


def test_tts_06_a_sentence_without_a_full_stop_is_cut() -> None:
    assert all(len(part) <= MAX_PART_CHARS for part in parts("word " * 600))
    assert "".join(parts("x" * 3000)) == "x" * 3000


@given(st.text(max_size=300))
def test_any_text_can_be_cleaned(text: str) -> None:
    assert isinstance(spell_out(strip_markup(text)), str)


@pytest.mark.parametrize("text", ["🙂", "...", "###", "", "你好", "—"])
def test_tts_02_an_english_voice_has_nothing_to_say(text: str) -> None:
    assert not can_say_any(strip_markup(text), "en")


@pytest.mark.parametrize(
    ("text", "language"),
    [("hi", "en"), ("7", "en"), ("schön", "de"), ("Привет", "ru"), ("你好", "zh"), ("γεια", "el")],
)
def test_a_voice_says_its_own_script(text: str, language: str) -> None:
    assert can_say_any(text, language)


def test_ssml_has_texts_and_pauses() -> None:
    text = (
        '<speak>Hello <break time="500ms"/> you &amp; me<p>Next</p><break strength="weak"/></speak>'
    )
    assert is_ssml(text)
    assert parse_ssml(text) == ["Hello ", 0.5, " you & me\nNext\n", 0.2]
    assert not is_ssml("<speaker>") and not is_ssml("speak")


@pytest.mark.parametrize(
    ("ssml", "error", "says"),
    [
        ('<speak><prosody rate="x">a</prosody></speak>', Unsupported, "<prosody>"),
        ("<speak>a", InvalidRequest, "not valid SSML"),
        ("<speak>a" + '<break time="20s"/>' * 31 + "</speak>", InvalidRequest, "at most 600s"),
        ('<speak><break time="99s"/></speak>', InvalidRequest, "99s"),
        ('<speak><break strength="huge"/></speak>', InvalidRequest, "huge"),
        ('<!DOCTYPE s [<!ENTITY a "b">]><speak>&a;</speak>', Unsupported, "DOCTYPE"),
        ("<speak><speak>a</speak></speak>", Unsupported, "<speak>"),
    ],
)
def test_other_ssml_is_refused(ssml: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        parse_ssml(ssml)
