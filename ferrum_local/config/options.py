"""The table of every option of ``ferrum-local serve``.

Flags, ``FERRUM_*`` variables, ``ferrum.toml`` keys, ``--print-config`` and the
reference in ``docs/configuration.md`` are all made from ``OPTIONS``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ferrum_local.config.access_options import ACCESS_OPTIONS
from ferrum_local.config.option import Option as Option
from ferrum_local.config.realtime_options import REALTIME_OPTIONS
from ferrum_local.config.speech_options import SPEECH_OPTIONS
from ferrum_local.config.values import IPV6, Choice, Duration, Integer, KeepAlive, Switch, Text
from ferrum_local.llm.embedding_prefixes import FAMILIES
from ferrum_local.types import LlmOptions


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The value of every option. None: automatic, no limit or not given, as its help says.

    ``model`` and ``embedding_model`` items are ``PATH`` or ``NAME=PATH``; ``alias`` items are
    ``ALIAS=MODEL``.
    """

    model: tuple[str, ...]
    alias: tuple[str, ...]
    any_model_name: bool
    models_dir: tuple[str, ...]
    keep_alive_s: float | None
    lora: tuple[str, ...]
    embedding_model: tuple[str, ...]
    image_embedding_model: tuple[str, ...]
    mmproj: tuple[str, ...]
    embeddings_from_chat: bool
    embedding_ctx_size: int | None
    embedding_pooling: str
    embedding_prefix: str
    whisper_model: tuple[str, ...]
    voice: tuple[str, ...]
    voice_name: tuple[str, ...]
    stt_threads: int | None
    stt_workers: int | None
    tts_threads: int | None
    max_upload_mb: int
    max_audio_s: float
    host: str
    port: int
    socket: str | None
    ctx_size: int | None
    slots: int | None
    threads: int | None
    threads_batch: int | None
    gpu_layers: int | None
    flash_attn: str
    kv_type: str
    speculate: str
    draft_model: str | None
    prompt_cache_mb: int
    prompt_cache_dir: str | None
    force: bool
    max_queue: int
    request_timeout_s: float | None
    max_body_mb: int
    keep_alive_interval_s: float
    realtime_sessions: int
    realtime_idle_timeout_s: float | None
    realtime_max_turn_s: float
    drain_timeout_s: float
    api_key: tuple[str, ...]
    api_key_file: str | None
    token_file: str | None
    insecure: bool
    cors_origin: tuple[str, ...]
    allowed_host: tuple[str, ...]
    allow_local_files: bool
    media_dir: str | None
    allow_remote_media: bool
    offline: bool
    log_format: Literal["text", "json"]
    log_level: str
    log_content: bool
    debug: bool
    announce: Literal["json", "events"] | None
    events_fd: int | None
    ready_file: str | None
    exit_with_parent: bool
    exit_on_stdin_close: bool
    single_instance: bool
    data_dir: str | None


CONFIG_ENV = "FERRUM_CONFIG"
GROUPS = (
    "Models", "Speech", "Address", "Speed and memory", "Limits", "Access", "Output",
    "Inside an app",
)  # fmt: skip

_PATH = Text(metavar="PATH", expected="a path")
_DEFAULTS = LlmOptions()


OPTIONS: tuple[Option, ...] = (
    Option(
        name="model",
        field="model",
        group="Models",
        kind=Text(metavar="[NAME=]PATH", expected="a path, or NAME=PATH"),
        default=(),
        many=True,
        path=True,
        help="GGUF file to serve, and what clients call it. Without any: the starter models.",
    ),
    Option(
        name="alias",
        field="alias",
        group="Models",
        kind=Text(
            metavar="ALIAS=MODEL", expected="ALIAS=MODEL, like gpt-4o=mymodel", pattern=r".+=.+"
        ),
        default=(),
        many=True,
        help="Another name for a model.",
    ),
    Option(
        name="any-model-name",
        field="any_model_name",
        group="Models",
        kind=Switch(),
        default=False,
        help="Answer requests for any model name with the first model.",
    ),
    Option(
        name="models-dir",
        field="models_dir",
        group="Models",
        kind=Text(metavar="DIR", expected="a directory"),
        default=(),
        many=True,
        path=True,
        help="Directory of more models, loaded when they are first asked for.",
    ),
    Option(
        name="keep-alive",
        field="keep_alive_s",
        group="Models",
        kind=KeepAlive(none_word="auto"),
        default=None,
        help="How long a model stays after its last request; -1 is for ever. auto: 5m, and for "
        "ever if it was loaded at the start.",
    ),
    Option(
        name="lora",
        field="lora",
        group="Models",
        kind=Text(metavar="PATH[=SCALE]", expected="a path, or PATH=SCALE"),
        default=(),
        many=True,
        path=True,
        help="LoRA adapter for the first chat model, and how strongly it is applied (1).",
    ),
    Option(
        name="embedding-model",
        field="embedding_model",
        group="Models",
        kind=Text(metavar="[NAME=]PATH", expected="a path, or NAME=PATH"),
        default=(),
        many=True,
        path=True,
        help="GGUF file that turns texts into vectors, or one that ranks documents.",
    ),
    Option(
        name="image-embedding-model",
        field="image_embedding_model",
        group="Models",
        kind=Text(metavar="[NAME=]DIR", expected="a directory, or NAME=DIR"),
        default=(),
        many=True,
        path=True,
        help="ONNX export of a CLIP model, for vectors of images and texts in one space.",
    ),
    Option(
        name="mmproj",
        field="mmproj",
        group="Models",
        kind=Text(metavar="[NAME=]PATH", expected="a path, or NAME=PATH"),
        default=(),
        many=True,
        path=True,
        help="GGUF file of the vision projector of an embedding model (NAME, or the first).",
    ),
    Option(
        name="embeddings-from-chat",
        field="embeddings_from_chat",
        group="Models",
        kind=Switch(),
        default=_DEFAULTS.embeddings_from_chat,
        help="Let chat models make vectors too; a model made for it makes better ones.",
    ),
    Option(
        name="embedding-ctx-size",
        field="embedding_ctx_size",
        group="Models",
        kind=Integer(16, 1_048_576, none_word="auto"),
        default=_DEFAULTS.embedding_ctx_size,
        help="Tokens of the longest text to embed; auto: what the model can, up to 2048.",
    ),
    Option(
        name="embedding-pooling",
        field="embedding_pooling",
        group="Models",
        kind=Choice(("auto", "mean", "cls", "last")),
        default=_DEFAULTS.embedding_pooling,
        help="How one vector is made of a text's tokens; auto: as the file says.",
    ),
    Option(
        name="embedding-prefix",
        field="embedding_prefix",
        group="Models",
        kind=Text(
            metavar="FAMILY",
            expected=f"auto, none or one of {', '.join(FAMILIES)}",
            pattern="|".join(("auto", "none", *FAMILIES)),
        ),
        default=_DEFAULTS.embedding_prefix,
        help="Family whose prefixes go before queries and documents; auto: by the name.",
    ),
    *SPEECH_OPTIONS,
    Option(
        name="host",
        field="host",
        group="Address",
        kind=Text(
            metavar="HOST",
            expected="a host name or address like 127.0.0.1, without http:// and port",
            pattern=rf"[\w.-]+|{IPV6}",
        ),
        default="127.0.0.1",
        help="Address to listen on; 0.0.0.0 lets other machines in.",
    ),
    Option(
        name="port",
        field="port",
        group="Address",
        kind=Integer(0, 65_535),
        default=8000,
        help="Port to listen on; 0 takes any free one.",
    ),
    Option(
        name="socket",
        field="socket",
        group="Address",
        kind=_PATH,
        default=None,
        path=True,
        help="Unix socket, for this user only; instead of a port unless --port is given.",
    ),
    Option(
        name="ctx-size",
        field="ctx_size",
        group="Speed and memory",
        kind=Integer(16, 16_777_216, none_word="auto"),
        default=_DEFAULTS.ctx_size,
        help="Tokens that one request may use, prompt and answer.",
    ),
    Option(
        name="slots",
        field="slots",
        group="Speed and memory",
        kind=Integer(1, 256, none_word="auto"),
        default=_DEFAULTS.slots,
        help="Answers generated at the same time.",
    ),
    Option(
        name="threads",
        field="threads",
        group="Speed and memory",
        kind=Integer(1, 1024, none_word="auto"),
        default=_DEFAULTS.threads,
        help="CPU threads for generating; auto: one for each core.",
    ),
    Option(
        name="threads-batch",
        field="threads_batch",
        group="Speed and memory",
        kind=Integer(1, 1024, none_word="auto"),
        default=_DEFAULTS.threads_batch,
        help="CPU threads for reading prompts; auto: as --threads.",
    ),
    Option(
        name="gpu-layers",
        field="gpu_layers",
        group="Speed and memory",
        kind=Integer(0, 10_000, none_word="auto"),
        default=_DEFAULTS.gpu_layers,
        help="Layers to put on the GPU; auto: all.",
    ),
    Option(
        name="flash-attn",
        field="flash_attn",
        group="Speed and memory",
        kind=Choice(("auto", "on", "off")),
        default=_DEFAULTS.flash_attn,
        help="Flash attention; auto: where it is fast.",
    ),
    Option(
        name="kv-type",
        field="kv_type",
        group="Speed and memory",
        kind=Choice(("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")),
        default=_DEFAULTS.kv_type,
        help="Number format of the KV cache; smaller ones save memory.",
    ),
    Option(
        name="speculate",
        field="speculate",
        group="Speed and memory",
        kind=Choice(("auto", "off")),
        default=_DEFAULTS.speculate,
        help="Draft repeated text from the prompt, where that proves faster.",
    ),
    Option(
        name="draft-model",
        field="draft_model",
        group="Speed and memory",
        kind=_PATH,
        default=_DEFAULTS.draft_model,
        path=True,
        help="Small GGUF of the same family that guesses ahead for the large one.",
    ),
    Option(
        name="prompt-cache-mb",
        field="prompt_cache_mb",
        group="Speed and memory",
        kind=Integer(0, 1_048_576),
        default=_DEFAULTS.prompt_cache_mb,
        help="Memory for prompts that lost their slot, in MiB; 0 keeps none.",
    ),
    Option(
        name="prompt-cache-dir",
        field="prompt_cache_dir",
        group="Speed and memory",
        kind=_PATH,
        default=_DEFAULTS.prompt_cache_dir,
        path=True,
        help="Directory that keeps evaluated prompts across restarts.",
    ),
    Option(
        name="force",
        field="force",
        group="Speed and memory",
        kind=Switch(),
        default=_DEFAULTS.force,
        help="Load a model even if the memory seems too small for it.",
    ),
    Option(
        name="max-queue",
        field="max_queue",
        group="Limits",
        kind=Integer(0, 100_000),
        default=_DEFAULTS.max_queue,
        help="Requests that may wait for a slot; more are answered 429.",
    ),
    Option(
        name="request-timeout",
        field="request_timeout_s",
        group="Limits",
        kind=Duration(none_word="none"),
        default=None,
        help="Longest time for one request, waiting included, like 90 or 2m.",
    ),
    Option(
        name="max-body-mb",
        field="max_body_mb",
        group="Limits",
        kind=Integer(1, 4096),
        default=32,
        help="Largest request body, in MiB.",
    ),
    Option(
        name="keep-alive-interval",
        field="keep_alive_interval_s",
        group="Limits",
        kind=Duration(minimum_s=0.1, maximum_s=3600.0),
        default=3.0,
        help="Time between keep-alive comments on a stream with nothing to say.",
    ),
    *REALTIME_OPTIONS,
    Option(
        name="drain-timeout",
        field="drain_timeout_s",
        group="Limits",
        kind=Duration(maximum_s=86_400.0),
        default=10.0,
        help="Time that open requests get to finish when the server is stopped.",
    ),
    *ACCESS_OPTIONS,
    Option(
        name="log-format",
        field="log_format",
        group="Output",
        kind=Choice(("text", "json")),
        default="text",
        help="How log lines on stderr look.",
    ),
    Option(
        name="log-level",
        field="log_level",
        group="Output",
        kind=Choice(("debug", "info", "warning", "error")),
        default="info",
        help="How much is logged.",
    ),
    Option(
        name="log-content",
        field="log_content",
        group="Output",
        kind=Switch(),
        default=False,
        help="Log what is asked and answered too; else logs hold no text of a request.",
    ),
    Option(
        name="debug",
        field="debug",
        group="Output",
        kind=Switch(),
        default=False,
        help="Offer GET /debug/check, which compares the engine's books with llama.cpp's.",
    ),
    Option(
        name="announce",
        field="announce",
        group="Inside an app",
        kind=Choice(("json", "events"), none_word="none"),
        default=None,
        help="json: one line with url, port and pid on stdout when ready; events: all events.",
    ),
    Option(
        name="events-fd",
        field="events_fd",
        group="Inside an app",
        kind=Integer(3, 65_535, none_word="none"),
        default=None,
        help="Inherited file descriptor to write all events to.",
    ),
    Option(
        name="ready-file",
        field="ready_file",
        group="Inside an app",
        kind=_PATH,
        default=None,
        path=True,
        help="File that holds the ready line as long as requests are served.",
    ),
    Option(
        name="exit-with-parent",
        field="exit_with_parent",
        group="Inside an app",
        kind=Switch(),
        default=False,
        help="Stop when the process that started the server ends.",
    ),
    Option(
        name="exit-on-stdin-close",
        field="exit_on_stdin_close",
        group="Inside an app",
        kind=Switch(),
        default=False,
        help="Stop when stdin, a pipe, is closed.",
    ),
    Option(
        name="single-instance",
        field="single_instance",
        group="Inside an app",
        kind=Switch(),
        default=False,
        help="Refuse to start beside another such server of the same data directory.",
    ),
    Option(
        name="data-dir",
        field="data_dir",
        group="Inside an app",
        kind=Text(metavar="DIR", expected="a directory", none_word="auto"),
        default=None,
        path=True,
        help="Where --single-instance keeps its lock; auto: the user's data directory.",
    ),
)
