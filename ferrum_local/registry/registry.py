"""``Registry``: the models in some directories, each with an id and aliases."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from ferrum_local.model_names import RESERVED, model_id_from_path
from ferrum_local.registry.cache import FactsCache
from ferrum_local.registry.facts import SERVED_KINDS, ModelFacts, read_facts
from ferrum_local.registry.files import Candidate, find_candidates, identity

# What file names end in to tell conversions of one model apart.
_QUANTIZATION = re.compile(
    r"[.\-_](?:UD[.\-_])?(?:I?Q\d+(?:_\w+)*|T?Q\d_\d|BF16|F16|FP16|F32|MXFP4(?:_\w+)?)$",
    re.IGNORECASE,
)


class RegisteredModel(ModelFacts, frozen=True, kw_only=True):
    """A model and its names, which no other of the registry has."""

    id: str
    aliases: tuple[str, ...] = ()

    @property
    def is_served(self) -> bool:
        """Whether a server can load it for requests that name it."""
        return self.fault is None and self.kind in SERVED_KINDS


class Registry:
    """The models in ``directories``, of which the first ones win a name.

    :param cache_path: keeps what was read for other processes; None: does not.
    """

    def __init__(self, directories: Sequence[str], *, cache_path: str | None = None) -> None:
        self.directories = tuple(directories)
        self._cache = FactsCache(Path(cache_path) if cache_path else None)
        self._lock = threading.Lock()

    def scan(
        self, *, reserved: Collection[str] = (), without: Iterable[str] = ()
    ) -> tuple[RegisteredModel, ...]:
        """What lies there now. A file that cannot be used is there with its fault.

        :param reserved: names that no model may get.
        :param without: paths of models that are left out, whatever they are called here.
        """
        left_out = {identity(path) for path in without}
        with self._lock:
            found = [
                (candidate, self._facts(candidate))
                for candidate in find_candidates(self.directories)
                if identity(candidate.path) not in left_out
            ]
            self._cache.save()
        return named(found, reserved)

    def _facts(self, candidate: Candidate) -> ModelFacts:
        if candidate.form != "gguf":
            return read_facts(candidate.path, candidate.form)
        facts = self._cache.get(candidate.path)
        if facts is None:
            facts = read_facts(candidate.path, candidate.form)
            self._cache.put(facts)
        return facts


def named(
    found: Iterable[tuple[Candidate, ModelFacts]], reserved: Collection[str] = ()
) -> tuple[RegisteredModel, ...]:
    """Give each model an id of its own, and the aliases that mean no other.

    The id is the file's name; a second one of the same name gets its directory's in front.
    Aliases are the names of links to it, and its name without the quantisation if no other
    model would have the same.
    """
    found = list(found)
    ids: dict[str, int] = {}  # id -> place in ``found``
    for place, (candidate, _) in enumerate(found):
        ids[_free_id(candidate.path, {*reserved, *ids})] = place
    wanted = [
        _wanted_aliases(candidate, id_) for id_, (candidate, _) in zip(ids, found, strict=True)
    ]
    n_wanting = Counter(name for names in wanted for name in names)
    return tuple(
        RegisteredModel(
            id=id_,
            aliases=tuple(
                n for n in names if n_wanting[n] == 1 and n not in ids and n not in reserved
            ),
            **{f: getattr(facts, f) for f in ModelFacts.__struct_fields__},
        )
        for id_, names, (_, facts) in zip(ids, wanted, found, strict=True)
    )


def find(models: Iterable[RegisteredModel], name: str) -> RegisteredModel | None:
    """The model of this id, alias or path."""
    models = tuple(models)
    for model in models:
        if name in (model.id, model.path):
            return model
    return next((model for model in models if name in model.aliases), None)


def without_quantization(id_: str) -> str:
    """``Qwen3-4B.Q4_K_M`` → ``Qwen3-4B``."""
    return _QUANTIZATION.sub("", id_)


def short_names(id_: str) -> tuple[str, ...]:
    """What else people call a GGUF model: ``Qwen3-4B.Q4_K_M`` → ``Qwen3-4B``, ``qwen3-4b``."""
    short = without_quantization(id_)
    return tuple(dict.fromkeys(n for n in (short, short.lower()) if n not in ("", id_, RESERVED)))


def _wanted_aliases(candidate: Candidate, id_: str) -> tuple[str, ...]:
    names = [_stem(path) for path in candidate.also]
    if candidate.form == "gguf":
        names = [*short_names(id_), *names]
    return tuple(dict.fromkeys(n for n in names if n not in ("", id_, RESERVED)))


def _free_id(path: str, taken: Collection[str]) -> str:
    id_ = _stem(path)
    if id_ in taken:
        id_ = f"{_stem(os.path.dirname(path))}/{id_}"
    number, numbered = 2, id_
    while numbered in taken:
        numbered, number = f"{id_}-{number}", number + 1
    return numbered


def _stem(path: str) -> str:
    return model_id_from_path(path[:-5] if path.lower().endswith(".onnx") else path)


def to_dict(model: RegisteredModel) -> dict[str, object]:
    """Everything of a model as plain values."""
    return dict(msgspec.to_builtins(model))
