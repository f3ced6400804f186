"""Who answers in a chat: an engine in this process, or a server."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ferrum_local.errors import ModelNotFound

if TYPE_CHECKING:
    from ferrum_local.cli.client import ServerClient
    from ferrum_local.cli.found_models import FoundModel
    from ferrum_local.cli.quiet_engine import QuietEngine
    from ferrum_local.types import LlmOptions, SamplingParams

_POLL_S = 0.1  # Ctrl-C is noticed between two polls on systems that cannot interrupt a wait
CHAT_PATH = "/v1/chat/completions"


class Piece(NamedTuple):
    """What an answer gained. ``finish_reason`` comes with the last one."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None


class SamplingWishes(NamedTuple):
    """What the command line says of sampling. None: as the model or server does."""

    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


class Answers(Protocol):
    """Whoever can be asked."""

    @property
    def model(self) -> str:
        """The id of the model that answers."""
        ...

    def models(self) -> tuple[str, ...]:
        """The ids of all that could."""
        ...

    def use(self, model: str) -> None:
        """Have another model answer from now on.

        :raises ModelNotFound: there is none of that name.
        """
        ...

    def answer(self, messages: Sequence[Mapping[str, Any]]) -> Generator[Piece, None, None]:
        """Ask. Closing the generator ends the work.

        :raises FerrumError: what cannot be answered, like a conversation that is too long.
        """
        ...

    def close(self) -> None: ...


class EngineAnswers:
    """An engine in this process, with one model at a time.

    :param models: those that ``use`` can switch to; the first one is loaded now.
    """

    def __init__(
        self, models: Sequence[FoundModel], options: LlmOptions, wishes: SamplingWishes
    ) -> None:
        self._models = {model.spec.id: model for model in models}
        self._options = options
        self._sampling = _sampling_params(wishes)
        self._engine: QuietEngine | None = None
        self.use(models[0].spec.id)

    @property
    def model(self) -> str:
        return self._model

    def models(self) -> tuple[str, ...]:
        return tuple(self._models)

    def use(self, model: str) -> None:
        from ferrum_local.cli.quiet_engine import QuietEngine

        if model not in self._models:
            raise ModelNotFound(f"There is no model {model!r}. Known: {', '.join(self._models)}.")
        self.close()  # first: two may not fit into memory
        self._engine = QuietEngine([self._models[model]], self._options)
        self._model = model

    def answer(self, messages: Sequence[Mapping[str, Any]]) -> Generator[Piece, None, None]:
        from ferrum_local.types import ChatPrompt, InferenceRequest

        if self._engine is None:
            self.use(self._model)  # the last switch failed: back to what was there before
            assert self._engine is not None
        request = InferenceRequest(
            id=f"chat-{uuid.uuid4().hex}",
            model_id="",
            prompt=ChatPrompt(messages=tuple(dict(message) for message in messages)),
            sampling_params=self._sampling,
            stream=True,
            created_at=time.time(),
        )
        with self._engine.engine.infer_stream(request) as stream:
            while True:
                try:
                    chunk = stream.poll(_POLL_S)
                except StopIteration:
                    return
                if chunk is not None:
                    reason = chunk.finish_reason
                    yield Piece(chunk.text, chunk.reasoning, reason.value if reason else None)

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


def _sampling_params(wishes: SamplingWishes) -> SamplingParams:
    from ferrum_local.types import SamplingParams

    params = SamplingParams(max_tokens=wishes.max_tokens, seed=wishes.seed)
    if wishes.temperature is None:
        return params
    return SamplingParams(
        max_tokens=wishes.max_tokens, seed=wishes.seed, temperature=wishes.temperature
    )


class ServerAnswers:
    """A running server.

    :param model: as clients name it; None: the server's first chat model.
    :raises ServerUnreachable: nothing listens there.
    :raises ModelNotFound: no chat model of that name is there.
    """

    def __init__(
        self, client: ServerClient, wishes: SamplingWishes, *, model: str | None = None
    ) -> None:
        self._client = client
        self._wishes = {
            name: value for name, value in wishes._asdict().items() if value is not None
        }
        self._model = ""
        known = self.models()
        if not known:
            raise ModelNotFound(f"The server at {client.url} has no chat model.")
        self.use(model or known[0])

    @property
    def model(self) -> str:
        return self._model

    def models(self) -> tuple[str, ...]:
        return tuple(model["id"] for model in self._chat_models())

    def use(self, model: str) -> None:
        for known in self._chat_models():
            if model == known["id"] or model in known.get("aliases", ()):
                self._model = str(known["id"])
                return
        raise ModelNotFound(f"There is no model {model!r}. Known: {', '.join(self.models())}.")

    def _chat_models(self) -> list[dict[str, Any]]:
        models = self._client.get("/v1/models")["data"]
        # Other servers than this one do not say what a model can do.
        return [model for model in models if "chat" in model.get("capabilities", ("chat",))]

    def answer(self, messages: Sequence[Mapping[str, Any]]) -> Generator[Piece, None, None]:
        body = {"model": self._model, "messages": list(messages), **self._wishes}
        with self._client.stream(CHAT_PATH, body) as events:
            for event in events:
                for choice in event.get("choices", ()):
                    delta = choice.get("delta", {})
                    yield Piece(
                        delta.get("content") or "",
                        delta.get("reasoning_content") or "",
                        choice.get("finish_reason"),
                    )

    def close(self) -> None:
        """Nothing is held between two answers."""
