"""Value types shared by every layer: requests, sampling, chunks, usage.

They are the Python form of the seed's ``ferrum_types``. Plain frozen structs:
no behaviour, no imports of a runtime, safe to pass between threads.
"""

from __future__ import annotations

import enum
import time
from array import array
from typing import Any, Literal, Protocol, TypeAlias

import msgspec


class Priority(enum.IntEnum):
    """Who goes first when slots are scarce; higher runs earlier."""

    BACKGROUND = 0
    INTERACTIVE = 1
    REALTIME = 2


class FinishReason(str, enum.Enum):
    """Why a sequence ended."""

    STOP = "stop"  # end-of-generation token or a stop string
    LENGTH = "length"  # token budget or context used up
    TOOL_CALLS = "tool_calls"  # the answer ended with calls of tools
    CANCELLED = "cancelled"  # never sent to a client as a finish_reason


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen and when generation ends.

    Defaults are OpenAI's where OpenAI has the field (temperature 1, top_p 1) and
    llama.cpp's elsewhere; ``min_p`` 0.05 keeps small models from wandering.
    Ranges are checked at the HTTP layer and again where C code would abort.
    """

    max_tokens: int | None = None  # None: up to the end of the context
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0  # < 0: off
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  # -1: whole context
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0  # 0 off, 1, 2
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64  # 0: off, -1: whole context
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; 0..20: that many alternatives a token
    prompt_logprobs: int | None = None  # the same for the prompt's own tokens (echo)


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer must match from its first character to its last.

    ``kind`` and what ``value`` is for it: ``json_object`` (None), ``json_schema`` (the schema),
    ``regex``, ``lark`` and ``gbnf`` (text), ``choice`` (a tuple of texts). ``param`` is the
    request's field that errors name.
    """

    kind: Literal["json_object", "json_schema", "regex", "choice", "lark", "gbnf"]
    value: Any = None
    param: str = "response_format"


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of text that a model thinks aloud.

    ``separate``: it is told apart from the answer (``StreamChunk.reasoning``); else it stays in
    the text as the model wrote it. ``budget_tokens``: so many at most, then the block is closed
    for the model; None: no limit, 0: none. ``effort`` is OpenAI's word for how much to think,
    for templates that can be told; None: the model's own default.
    """

    separate: bool = True
    budget_tokens: int | None = None
    effort: str | None = None


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that the model's own chat template will render.

    ``messages`` are plain dicts in OpenAI's shape, already validated: ``role`` is
    one of system, user, assistant, tool; ``content`` is a string or None.
    A trailing assistant message is continued rather than closed.

    ``tools`` are OpenAI's (``{"type": "function", "function": {…}}``). ``tool_choice`` is
    ``auto``, ``none`` or ``required``; a name in ``tool_name`` demands that one.
    ``parallel_tool_calls`` None: as many as the model is used to.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    tool_name: str | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions = ReasoningOptions()
    template_kwargs: dict[str, Any] = {}


class InfillPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Fill-in-the-middle: write what stands between ``prefix`` and ``suffix``."""

    prefix: str
    suffix: str


TokenIds: TypeAlias = tuple[int, ...]
Prompt: TypeAlias = str | TokenIds | ChatPrompt | InfillPrompt


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One generation request, after parsing (the seed's fields).

    ``created_at`` is seconds since the epoch, for people. ``deadline_s``, seconds from
    ``made_at_s``, bounds queueing and generation together; None: no limit. ``made_at_s`` is
    when this struct was made, in seconds of ``time.monotonic``.
    """

    id: str
    model_id: str
    prompt: Prompt
    sampling_params: SamplingParams = SamplingParams()
    stream: bool = False
    priority: Priority = Priority.INTERACTIVE
    client_id: str | None = None
    session_id: str | None = None
    created_at: float = 0.0
    made_at_s: float = msgspec.field(default_factory=time.monotonic)
    deadline_s: float | None = None
    prediction: str | None = None  # text that the answer may largely repeat: drafted from
    constraint: Constraint | None = None
    metadata: dict[str, str] = {}


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative at one position; ``bytes`` are the token's raw bytes."""

    token_id: int
    bytes: bytes
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True):
    """The chosen token at one position and its ``top`` alternatives, best first.

    Values are natural logs of the model's unmodified distribution. ``logprob``
    is None only for the first prompt token, which nothing precedes.
    """

    token_id: int
    bytes: bytes
    logprob: float | None
    top: tuple[TopLogprob, ...] = ()


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one tool call of a choice gained. ``id`` and ``name`` come once, with its first."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""  # a fragment of a JSON object's text


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A finished call; ``arguments`` is the text of a JSON object."""

    id: str
    name: str
    arguments: str


class StreamChunk(msgspec.Struct, frozen=True, kw_only=True):
    """What one choice gained since its last chunk.

    ``text`` is complete UTF-8 that can be sent as it is (possibly empty: held back
    for an unfinished character or a possible stop string). ``logprobs`` belong to
    the tokens of this chunk's text. ``finish_reason`` is set once, on the choice's last.
    """

    index: int
    text: str = ""
    reasoning: str = ""  # thought aloud, and not part of ``text``
    tool_calls: tuple[ToolCallDelta, ...] = ()
    token_ids: TokenIds = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts from the tokenizer. ``completion_tokens`` sums all choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request's time went; milliseconds, as llama.cpp's server reports."""

    queue_ms: float
    prompt_n: int  # prompt tokens evaluated (not found in the cache)
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    ttft_ms: float | None  # None: no token was produced


class InferenceResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request: one entry of ``choices`` for each of n, by index."""

    id: str
    model_id: str
    choices: tuple[Choice, ...]
    usage: Usage
    timings: Timings
    prompt_token_ids: TokenIds = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One finished sequence."""

    index: int
    text: str
    token_ids: TokenIds
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class ImageInput(msgspec.Struct, frozen=True):
    """An image file's bytes, not decoded yet."""

    data: bytes


InputType: TypeAlias = Literal["query", "document"]


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs to turn into vectors, after parsing.

    ``input_type`` adds the prefix that the model was trained with for searching or for what
    is searched. ``truncate``: cut texts that are too long, rather than refuse them.
    ``dimensions``: cut vectors to so many numbers, and normalise again. ``is_crowded``: others
    are being served too, so a small step should not take all cores. ``created_at``,
    ``made_at_s`` and ``deadline_s`` are those of :class:`InferenceRequest`.
    """

    id: str
    model_id: str
    inputs: tuple[str | TokenIds | ImageInput, ...]
    input_type: InputType | None = None
    dimensions: int | None = None
    truncate: bool = False
    is_crowded: bool = False
    created_at: float = 0.0
    made_at_s: float = msgspec.field(default_factory=time.monotonic)
    deadline_s: float | None = None
    metadata: dict[str, str] = {}


class EmbeddingResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One vector (L2-normalised) for each input, in order.

    ``truncated`` has the indexes of inputs that were cut. ``prompt_tokens`` counts text tokens.
    """

    model_id: str
    vectors: tuple[array[float], ...]
    prompt_tokens: int
    truncated: tuple[int, ...] = ()


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Documents to be scored by how well they answer ``query``.

    ``param``: what the request calls its documents, for errors. ``is_crowded``: see
    :class:`EmbeddingRequest`.
    """

    id: str
    model_id: str
    query: str
    documents: tuple[str, ...]
    param: str = "documents"
    truncate: bool = False
    is_crowded: bool = False
    created_at: float = 0.0
    made_at_s: float = msgspec.field(default_factory=time.monotonic)
    deadline_s: float | None = None
    metadata: dict[str, str] = {}


class RerankResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A score for each document, in the order they came.

    ``method``: ``cross-encoder`` (a rerank model read query and document together; ``scores``
    are from 0 to 1, ``raw_scores`` what the model said) or ``embedding-similarity`` (cosines,
    from -1 to 1, in both).
    """

    model_id: str
    method: Literal["cross-encoder", "embedding-similarity"]
    scores: tuple[float, ...]
    raw_scores: tuple[float, ...]
    prompt_tokens: int
    truncated: tuple[int, ...] = ()


class LoraAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter's GGUF file, and how strongly it is applied; 1 is as it was trained."""

    path: str
    scale: float = 1.0


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be loaded; ``id`` is what clients call it.

    ``kind``: chat, embedding (a rerank model too), image-embedding, transcription, speech.
    ``loras`` are for chat models.
    """

    id: str
    path: str
    aliases: tuple[str, ...] = ()
    kind: str = "chat"
    mmproj: str | None = None  # an embedding model's projector for images
    loras: tuple[LoraAdapter, ...] = ()


class LibraryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Models that are loaded when they are first asked for: those in ``directories``.

    ``cache_path``: remembers what their files say; None: nothing does. ``keep_alive_s``: how
    long a model stays after its last request, negative for ever; None: 5 minutes, and for ever
    if it was loaded at the start.
    """

    directories: tuple[str, ...] = ()
    cache_path: str | None = None
    keep_alive_s: float | None = None


class LlmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the llama.cpp runtime loads and runs a model.

    None means: decided at load from the model and the machine.
    """

    ctx_size: int | None = None  # tokens that one request may use, prompt and answer
    slots: int | None = None  # sequences that can be decoded together
    threads: int | None = None  # for decode; default: physical cores
    threads_batch: int | None = None  # for prefill; default: threads
    gpu_layers: int | None = None  # None: all of them, where the build has a GPU
    flash_attn: str = "auto"  # auto, on, off
    kv_type: str = "f16"  # f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0
    max_queue: int = 64  # requests that may wait for a slot
    speculate: str = "auto"  # auto: draft by prompt lookup where it pays; off
    draft_model: str | None = None  # a small GGUF of the same family that guesses ahead
    prompt_cache_mb: int = 256  # host memory for evicted prefixes, MiB
    prompt_cache_dir: str | None = None  # where they survive a restart
    force: bool = False  # load a model that seems too large for the memory
    embedding_ctx_size: int | None = None  # tokens of the longest text to embed
    embedding_pooling: str = "auto"  # auto: as the model says; mean, cls, last
    embedding_prefix: str = "auto"  # auto: the family by the model's name; none, or a family
    embeddings_from_chat: bool = False  # chat models embed too


class RequestObserver(Protocol):
    """Hooks that the HTTP layer installs to fill its histograms (seconds)."""

    def on_first_token(self, model_id: str, ttft_s: float) -> None: ...

    def on_token_gap(self, model_id: str, itl_s: float) -> None: ...

    def on_queue_wait(self, model_id: str, wait_s: float) -> None: ...
