"""Prompts of random words: the same in every run, no two alike."""

from __future__ import annotations

import random

# Short common words: nearly all vocabularies have each of them as one token.
WORDS = tuple(
    """
    able about above across action after again against age ago air all almost alone along already
    also always among amount and animal another answer any apple area arm around art ask away baby
    back bad ball bank base bear beat bed before begin behind best better between big bird black
    blood blue board boat body bone book both box boy bread break bring brother brown build
    business but buy call car care carry case catch cause center chair chance change child choose
    church city class clean clear close cloud coat cold color come cook cool corn corner cost
    country course cover create cross cry cup current cut dance dark day dead deal deep did die
    different direct discuss do doctor dog door double down draw dream dress drink drive drop dry
    during each ear early earth east easy eat edge effect egg eight else end enemy energy engine
    enough enter equal even evening event ever every exact example eye face fact fair fall family
    farm fast father fear feed feel feet few field fight figure fill final find fine finger finish
    fire first fish fit five floor flow flower fly follow food foot force forest form forward found
    four free fresh friend from front fruit full game garden gas gave general gentle get girl give
    glass go gold good grand grass gray great green ground group grow guess guide half hand happy
    hard has hat have head hear heart heat heavy held help here high hill history hit hold hole
    home hope horse hot hour house human hundred hunt hurry ice idea if inch industry iron island
    job join jump just keep key kind king know lady lake land language large last late laugh law
    lead learn least leave left leg length less letter level life lift light like line list listen
    little live local long look lost lot love low machine main make man many map mark market
    master matter mean meat meet metal middle might mile milk million mind minute miss modern
    """.split()
)


def random_words(n_words: int, *key: object) -> str:
    """``n_words`` words; other words for another ``key``."""
    source = random.Random(repr(key))
    return " ".join(source.choice(WORDS) for _ in range(n_words))


def unshared_prompts(n_prompts: int, n_words: int, *key: object) -> list[str]:
    """Prompts of which no two begin with the same word (as long as there are words)."""
    order = random.Random(repr(key)).sample(WORDS, len(WORDS))
    return [
        f"{order[i % len(order)]} {random_words(n_words - 1, *key, i)}" for i in range(n_prompts)
    ]
