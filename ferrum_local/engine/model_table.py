"""Every model that an engine knows by name: those it was started with, then its library's."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from ferrum_local.audio_types import AudioConfig
from ferrum_local.engine.abilities import able_models, refuse_chat_model
from ferrum_local.engine.contracts import ModelInfo
from ferrum_local.errors import ModelNotFound, ModelUnusable
from ferrum_local.registry.facts import Kind, ModelFacts, read_facts
from ferrum_local.registry.registry import RegisteredModel, Registry, find, short_names
from ferrum_local.types import LibraryOptions, ModelSpec

_ON_DEMAND_KEEP_ALIVE_S = 300.0
_MIN_RESCAN_S = 1.0
_FLAG_FOR_KIND = {
    "chat": "--model",
    "embedding": "--embedding-model",
    "image-embedding": "--image-embedding-model",
    "rerank": "--embedding-model",
    "transcription": "--whisper-model",
    "speech": "--voice",
}
_USE_OF_KIND: dict[Kind, str] = {
    "lora": "is a LoRA adapter; --lora puts it on a chat model",
    "draft": "is a draft model; --draft-model lets it guess for a larger one",
    "projector": "is a vision projector, not a language model",
}


class KnownModel:
    """A model that can be loaded. ``is_named``: the engine was started with it."""

    def __init__(
        self, spec: ModelSpec, facts: ModelFacts | None, *, keep_alive_s: float, is_named: bool
    ) -> None:
        self.spec = spec
        self.facts = facts
        self.keep_alive_s = keep_alive_s  # unless a request says otherwise; may be infinite
        self.is_named = is_named

    @functools.cached_property
    def file_facts(self) -> ModelFacts | None:
        """What the model's file says, read once; None: it is no GGUF file, or was deleted."""
        if self.facts is None and _is_gguf(self.spec):
            facts = read_facts(self.spec.path, "gguf")
            return None if facts.fault else facts
        return self.facts


class _Candidate(NamedTuple):
    """What says whether a model is meant; no file is looked at for it."""

    id: str
    aliases: tuple[str, ...]
    kind: str
    capabilities: tuple[str, ...]
    model: KnownModel


def kind_for_clients(spec: ModelSpec) -> str:
    return "embedding" if spec.kind == "image-embedding" else spec.kind


class ModelTable:
    """Finds models by name.

    :param info_of: describes a model as it is right now.
    :param capabilities_of: what it can do.
    :param is_loaded: whether a model, by its id, is in memory.
    :param any_model_name: whatever name comes means the first model.
    """

    def __init__(
        self,
        models: Sequence[ModelSpec],
        audio: AudioConfig,
        library: LibraryOptions,
        *,
        info_of: Callable[[KnownModel], ModelInfo],
        capabilities_of: Callable[[KnownModel], tuple[str, ...]],
        is_loaded: Callable[[str], bool],
        any_model_name: bool,
    ) -> None:
        self._info_of = info_of
        self._capabilities_of = capabilities_of
        self._is_loaded = is_loaded
        self._any_model_name = any_model_name
        self._keep_alive_s = library.keep_alive_s
        self._named = [self._named_model(spec, spec.kind) for spec in models]
        self._named += [self._named_model(s, "transcription") for s in audio.whisper_models]
        self._named += [self._named_model(s, "speech") for s in audio.voices]
        _add_short_names(self._named)
        self._registry: Registry | None = None
        if library.directories:
            self._registry = Registry(library.directories, cache_path=library.cache_path)
        self._lock = threading.Lock()
        self._registered: tuple[RegisteredModel, ...] = ()
        self._offered: tuple[KnownModel, ...] = ()  # of the registered ones
        self._scanned_s = -math.inf

    def _named_model(self, spec: ModelSpec, kind: str) -> KnownModel:
        spec = msgspec.structs.replace(spec, kind=kind)
        keep_alive_s = self._seconds(math.inf)
        return KnownModel(spec, None, keep_alive_s=keep_alive_s, is_named=True)

    def _seconds(self, default_s: float) -> float:
        wanted_s = self._keep_alive_s
        if wanted_s is None:
            return default_s
        return math.inf if wanted_s < 0 else wanted_s

    @property
    def named(self) -> Sequence[KnownModel]:
        """Those that the engine was started with."""
        return self._named

    def __iter__(self) -> Iterator[KnownModel]:
        yield from self._named
        yield from self._offered

    def rescan(self) -> bool:
        """Look what lies in the library now. False: it was looked at a moment ago."""
        if self._registry is None:
            return False
        with self._lock:
            if time.monotonic() - self._scanned_s < _MIN_RESCAN_S:
                return False
            reserved = {n for m in self._named for n in (m.spec.id, *m.spec.aliases)}
            paths = [m.spec.path for m in self._named]
            self._registered = self._registry.scan(reserved=reserved, without=paths)
            offered = [self._offer(model) for model in self._registered if model.is_served]
            ids = {model.spec.id for model in offered}
            # What was deleted answers as long as it is in memory.
            self._offered = (
                *offered,
                *(m for m in self._offered if m.spec.id not in ids and self._is_loaded(m.spec.id)),
            )
            self._scanned_s = time.monotonic()
            return True

    def _offer(self, model: RegisteredModel) -> KnownModel:
        kind = "embedding" if model.kind == "rerank" else model.kind
        spec = ModelSpec(id=model.id, path=model.path, aliases=model.aliases, kind=kind)
        keep_alive_s = self._seconds(_ON_DEMAND_KEEP_ALIVE_S)
        return KnownModel(spec, model, keep_alive_s=keep_alive_s, is_named=False)

    def infos(self) -> tuple[ModelInfo, ...]:
        return tuple(map(self._info_of, self))

    def get(self, model_id: str) -> KnownModel:
        """:raises ModelNotFound: it is not known any more."""
        for model in self:
            if model.spec.id == model_id:
                return model
        raise ModelNotFound(f"The model {model_id!r} is gone.")

    def find(self, name: str | None, kind: str | None) -> KnownModel:
        """The model that ``name`` means on a route of ``kind``; None: on any.

        :raises ModelNotFound: with the known ids. ModelUnusable: its files are at fault.
        """
        try:
            return self._find(name, kind)
        except ModelNotFound:
            if self.rescan():
                return self._find(name, kind)
            raise

    def _find(self, name: str | None, kind: str | None) -> KnownModel:
        candidates = [
            _Candidate(
                model.spec.id, model.spec.aliases, kind_for_clients(model.spec),
                self._capabilities_of(model), model,
            )
            for model in self
        ]  # fmt: skip
        if kind is not None:
            refuse_chat_model(candidates, name, kind)
            candidates = able_models(candidates, kind)
        unnamed = not name or name == "default"
        if candidates and unnamed:
            return candidates[0].model
        for candidate in candidates:
            if name == candidate.id or name in candidate.aliases:
                return candidate.model
        if name and not unnamed:
            self._refuse_unserved(name)
        if not candidates:
            flag = _FLAG_FOR_KIND.get(kind or "")
            hint = f"; {flag} loads one" if flag else ""
            raise ModelNotFound(f"No {kind or 'such'} model is loaded{hint}.")
        if self._any_model_name:
            return candidates[0].model
        other = next((m for m in self if name in (m.spec.id, *m.spec.aliases)), None)
        problem = (
            f"No model {(name or '')[:200]!r} here."
            if other is None
            else f"The model {name!r} is for {kind_for_clients(other.spec)}, not for {kind}."
        )
        raise ModelNotFound(
            f"{problem} Known: {', '.join(map(_with_aliases, candidates))}, default.",
            known_ids=[candidate.id for candidate in candidates],
        )

    def _refuse_unserved(self, name: str) -> None:
        """:raises ModelUnusable: the library has it, and it cannot be loaded by name."""
        model = find(self._registered, name)
        if model is not None and not model.is_served:
            raise ModelUnusable(f"{model.id}: {model.fault or _USE_OF_KIND.get(model.kind)}")


def _add_short_names(models: Sequence[KnownModel]) -> None:
    """Those that mean one model, and no other is called."""
    taken = {name for m in models for name in (m.spec.id, *m.spec.aliases)}
    wanted = {m.spec.id: short_names(m.spec.id) for m in models if _is_gguf(m.spec)}
    n_wanting = Counter(name for names in wanted.values() for name in names)
    for model in models:
        new = [n for n in wanted.get(model.spec.id, ()) if n_wanting[n] == 1 and n not in taken]
        model.spec = msgspec.structs.replace(model.spec, aliases=(*model.spec.aliases, *new))


def _is_gguf(spec: ModelSpec) -> bool:
    return spec.path.lower().endswith(".gguf")


def _with_aliases(model: _Candidate) -> str:
    return f"{model.id} (also {', '.join(model.aliases)})" if model.aliases else model.id
