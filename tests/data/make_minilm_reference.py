"""Make minilm_reference.json: all-MiniLM-L6-v2's own vectors of 50 sentences.

``python -m tests.data.make_minilm_reference``, after ``make setup``. Nothing of llama.cpp takes
part: Hugging Face's tokenizers reads tokenizer.json, and numpy computes BERT in 64 bits from the
safetensors weights, with mean pooling and L2 normalisation as modules.json says.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tests.reference_bert import Array, Weights, hidden_states

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "models" / "src" / "all-minilm-l6-v2"
TARGET = HERE / "minilm_reference.json"
N_LAYER, N_HEAD, EPSILON = 6, 12, 1e-12

SENTENCES = (
    "hello world",
    "A man is eating food.",
    "A man eats a meal.",
    "The quick brown fox jumps over the lazy dog.",
    "a",
    "?!",
    "The stock market fell by 3.5% on Tuesday, its worst day since March 2020.",
    "def add(a, b):\n    return a + b  # sums two numbers",
    "SELECT name, COUNT(*) FROM users WHERE age >= 18 GROUP BY name;",
    "https://example.com/path?query=1&other=two#fragment",
    "e = mc²; ∑ xᵢ ≤ ∞, and π ≈ 3.14159",
    "Dr. O'Neill-Smith's e-mail is j.o'neill@example.co.uk (don't share it!)",
    "ALL CAPS SHOUTING AND mIxEd CaSe",
    "naïve café résumé jalapeño Ångström",
    "Der schnelle braune Fuchs springt über den faulen Hund – große Straße, Übergröße.",
    "Les élèves de l'école ont été reçus à l'université où ils étudient.",
    "¿Dónde está la biblioteca? ¡Mañana será otro día!",
    "Zażółć gęślą jaźń",
    "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "Pijamalı hasta yağız şoföre çabucak güvendi. İstanbul'da ılık",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Жебракують філософи при ґанку церкви в Гадячі.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "شَرِبَ القِطُّ الحليبَ ثم نام",
    "नमस्ते दुनिया, आप कैसे हैं?",
    "বাংলাদেশের রাজধানী ঢাকা",
    "தமிழ் மொழி மிகவும் பழமையானது",
    "ภาษาไทยเป็นภาษาที่สวยงาม",
    "今天天气很好，我们去公园散步吧。",
    "東京は日本の首都です。カタカナとひらがな。",
    "안녕하세요, 오늘은 날씨가 좋네요.",
    "Xin chào thế giới, tiếng Việt có nhiều dấu.",
    "სიცოცხლე მშვენიერია",
    "Բարեւ աշխարհ",
    "ሰላም ለዓለም",
    "I love pizza 🍕 and coding 💻!",
    "😀😃😄😁",
    "👨‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👍🏽 thumbs",
    "mixed 日本語 and English and русский in one line",
    "zero\u200bwidth\u200cjoiners\u200d and \ufefftags",
    "tabs\tand\nnewlines\r\nand   many    spaces\u00a0and\u3000wide ones",
    "“curly quotes” — em dash … ellipsis • bullet № 5 € £ ¥ ©",
    "ﬁne ligatures, ｆｕｌｌ width, Ⅷ numerals, ½ fractions",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "xqzjvkwp brfghtl zzyzx",
    "x" * 120,
    "[CLS] is not a marker here, nor is [SEP] or [MASK]",
    "In 1969, astronauts landed on the Moon; half a billion people watched it on television, "
    "and the samples that they brought back are still studied today.",
    "word " * 150,
)


def vector(text: str, tokenizer: Tokenizer, weights: Weights) -> Array:
    """The normalised embedding of one text."""
    states = hidden_states(
        tokenizer.encode(text).ids, weights, n_layer=N_LAYER, n_head=N_HEAD, epsilon=EPSILON
    )
    mean = states.mean(0)
    normalised: Array = mean / np.linalg.norm(mean)
    return normalised


def main() -> None:
    tokenizer = Tokenizer.from_file(str(SOURCE / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # A text is a text: what looks like a marker in it is none.
    tokenizer.encode_special_tokens = True
    weights = {
        name: values.astype(np.float64)
        for name, values in load_file(SOURCE / "model.safetensors").items()
    }
    assert len(SENTENCES) == 50
    entries = [
        {
            "text": text,
            "n_tokens": len(tokenizer.encode(text).ids),
            "float32_base64": base64.b64encode(
                vector(text, tokenizer, weights).astype("<f4").tobytes()
            ).decode(),
        }
        for text in SENTENCES
    ]
    how = (__doc__ or "").strip().replace("\n", " ")
    TARGET.write_text(json.dumps({"how": how, "entries": entries}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
