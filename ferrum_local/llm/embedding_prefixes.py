"""What embedding models were trained to find before a query or a document.

From the model cards of each family. Without it, search quality falls; similarity between
texts of one kind hardly changes.
"""

from __future__ import annotations

from typing import NamedTuple

from ferrum_local.types import InputType


class Prefixes(NamedTuple):
    query: str
    document: str

    def of(self, input_type: InputType | None) -> str:
        """The text to put first; empty when it is not said what a text is for."""
        if input_type is None:
            return ""
        return self.query if input_type == "query" else self.document


NO_PREFIXES = Prefixes("", "")
_SEARCHING = "Represent this sentence for searching relevant passages: "

# The first whose name is part of the model's name counts: the special before the general.
FAMILIES: dict[str, Prefixes] = {
    "nomic-embed": Prefixes("search_query: ", "search_document: "),
    "e5": Prefixes("query: ", "passage: "),
    "bge-m3": NO_PREFIXES,
    "bge": Prefixes(_SEARCHING, ""),
    "mxbai-embed": Prefixes(_SEARCHING, ""),
    "arctic-embed-l-v2": Prefixes("query: ", ""),
    "arctic-embed-m-v2": Prefixes("query: ", ""),
    "arctic-embed": Prefixes(_SEARCHING, ""),
    "embeddinggemma": Prefixes("task: search result | query: ", "title: none | text: "),
    "qwen3-embedding": Prefixes(
        "Instruct: Given a web search query, retrieve relevant passages that answer the query\n"
        "Query:",
        "",
    ),
}


def prefixes_for(choice: str, *names: str) -> Prefixes:
    """The prefixes of a model.

    :param choice: ``auto`` goes by the model's ``names``; ``none``, or a family of ``FAMILIES``.
    """
    if choice == "none":
        return NO_PREFIXES
    if choice != "auto":
        return FAMILIES[choice]
    spelled = " ".join(names).lower().replace("_", "-").replace(" ", "-")
    for family, prefixes in FAMILIES.items():
        # "e5" is short enough to be part of other words.
        if f"-{family}-" in f"-{spelled}-" or (len(family) > 3 and family in spelled):
            return prefixes
    return NO_PREFIXES
