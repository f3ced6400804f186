"""The llama.cpp runtime of one model: load it, turn requests into sequences, free it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import llama_cpp
import msgspec
import psutil

from ferrum_local.deadlines import time_left_s
from ferrum_local.errors import ContextOverflow, FerrumError
from ferrum_local.llm import native_log
from ferrum_local.llm.attention import choose_flash_attention
from ferrum_local.llm.chat_format import ChatFormat
from ferrum_local.llm.chat_template import ChatTemplate
from ferrum_local.llm.constraint import GrammarCompiler, Matcher
from ferrum_local.llm.context import ContextOptions, LlamaContext
from ferrum_local.llm.devices import gpu_devices
from ferrum_local.llm.draft_model import DraftModel
from ferrum_local.llm.generation import Generation
from ferrum_local.llm.gguf_header import check_adapter_file, check_model_file, parts_of
from ferrum_local.llm.memory import MIB, Shape, Sizes, check_fits, choose_sizes
from ferrum_local.llm.model import LlamaModel
from ferrum_local.llm.prompt_cache import DiskCache, PromptCache
from ferrum_local.llm.prompts import Prompts
from ferrum_local.llm.runner import Runner
from ferrum_local.llm.sampling import DryPrototypes, Sampler
from ferrum_local.llm.scheduler import Scheduler, StepTimes
from ferrum_local.llm.sequence import Sequence
from ferrum_local.llm.slot_cache import SlotCache
from ferrum_local.llm.speculation import Speculator
from ferrum_local.types import (
    ChatPrompt,
    InferenceRequest,
    LlmOptions,
    ModelSpec,
    Prompt,
    RequestObserver,
    SamplingParams,
    TokenIds,
)

logger = logging.getLogger(__name__)

MAX_BATCH = 512  # tokens of one step; llama.cpp's own default
_N_FINGERPRINT_SAMPLES = 32
_LOWEST_BIAS = -1e4  # far below what a model says, far from what float32 cannot hold
_MIN_DISK_CACHE_MB = 1024
_WARM_UP_TOKENS = 16  # enough to tell how long a prompt takes; all models wait for it at start
_N_SCORE_TOKENS = 64  # rows of logits for scoring a prompt: 64 x 262k x 4 bytes = 67 MB at most


class LlmRuntime:
    """One chat model, ready to generate.

    :param on_progress: gets the part of the weights that is loaded, 0.0 to 1.0.
    :raises ModelLoadError: when the file or the sizes asked for cannot be used.
    """

    def __init__(
        self,
        spec: ModelSpec,
        options: LlmOptions,
        *,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        started = time.perf_counter()
        native_log.install()
        self.spec = spec
        header = check_model_file(spec.path)
        for lora in spec.loras:
            check_adapter_file(lora.path)
        self._files = parts_of(header)
        shape = Shape.of(header)
        available_bytes = psutil.virtual_memory().available
        sizes = choose_sizes(options, shape, available_bytes)
        flash_attn = choose_flash_attention(options, shape)
        if not gpu_devices():  # on a GPU most of it lies in the GPU's own memory
            check_fits(
                spec.path,
                shape,
                sizes,
                options,
                n_batch=MAX_BATCH,
                flash_attn=flash_attn != "off",
                available_bytes=available_bytes,
            )
        with contextlib.ExitStack() as owned:  # frees what was made if a later part fails
            self.model = LlamaModel(
                spec.path, gpu_layers=options.gpu_layers, on_progress=on_progress
            )
            owned.callback(self.model.close)
            self._set_up(options, sizes, flash_attn, owned)
            self._owned = owned.pop_all()
        self.load_time_s = time.perf_counter() - started
        self._log_summary(options)

    def _set_up(
        self, options: LlmOptions, sizes: Sizes, flash_attn: str, owned: contextlib.ExitStack
    ) -> None:
        model = self.model
        self.grammars = GrammarCompiler(model, self.spec.id)
        owned.callback(self.grammars.close)
        self.n_ctx, self.n_slots = sizes.n_ctx, sizes.n_slots
        # A rejected draft is cut off again, which recurrent memory cannot do.
        self._speculates = options.speculate == "auto" and not model.is_recurrent
        n_threads = options.threads or physical_cores()
        self._context = LlamaContext(
            model,
            ContextOptions(
                n_ctx=sizes.n_ctx,
                n_slots=sizes.n_slots,
                n_batch=max(min(MAX_BATCH, sizes.n_ctx), sizes.n_slots),
                n_outputs=sizes.n_slots + _N_SCORE_TOKENS,
                n_threads=n_threads,
                n_threads_batch=options.threads_batch or n_threads,
                flash_attn=flash_attn,
                kv_type=options.kv_type,
                adapters=tuple(
                    (model.load_adapter(lora.path), lora.scale) for lora in self.spec.loras
                ),
            ),
        )
        owned.callback(self._context.close)
        self._draft_model = None
        if options.draft_model is not None and self._speculates:
            shape = Shape.of(check_model_file(options.draft_model))
            draft_options = dataclasses.replace(
                self._context.options, flash_attn=choose_flash_attention(options, shape)
            )
            self._draft_model = DraftModel(options.draft_model, model, draft_options)
            owned.callback(self._draft_model.close)
        self._dry = DryPrototypes()
        owned.callback(self._dry.close)
        self.chat_template = ChatTemplate(
            model.chat_template,
            bos_token=self._token_text(model.bos_token),
            eos_token=self._token_text(model.eos_token),
        )
        self._chat = ChatFormat(model, self.chat_template)
        self._prompts = Prompts(model, self._chat, n_ctx=sizes.n_ctx, model_id=self.spec.id)
        can_cut = not model.is_recurrent
        slots = SlotCache(sizes.n_slots, can_cut=can_cut)
        scheduler = Scheduler(
            n_batch=self._context.options.n_batch,
            n_score_tokens=_N_SCORE_TOKENS,
            times=StepTimes(self._warm_up()),
            can_cut=can_cut,
        )
        self._runner = Runner(
            self._context,
            slots,
            scheduler,
            max_queue=options.max_queue,
            prompt_cache=self._prompt_cache(options),
            name=self.spec.id,
        )
        self._slots = slots
        self._runner.start()

    def _prompt_cache(self, options: LlmOptions) -> PromptCache:
        disk = None
        if options.prompt_cache_dir is not None:
            # What shapes a state: the weights, the KV types, and llama.cpp's state format.
            fingerprint = hashlib.sha256(
                f"{[file_fingerprint(part) for part in self._files]} {options.kv_type} "
                f"{[(file_fingerprint(lora.path), lora.scale) for lora in self.spec.loras]} "
                f"{llama_cpp.__version__} {self._context.options.flash_attn}".encode()
            ).hexdigest()[:16]
            max_mb = max(4 * options.prompt_cache_mb, _MIN_DISK_CACHE_MB)
            disk = DiskCache(Path(options.prompt_cache_dir), fingerprint, max_mb * MIB)
        # llama.cpp saves of a sliding window only its end.
        max_cut_tokens = 0 if self.model.is_recurrent else self.model.n_swa or None
        return PromptCache(options.prompt_cache_mb * MIB, disk, max_cut_tokens=max_cut_tokens)

    def _token_text(self, token: int) -> str:
        if token < 0:
            return ""
        return self.model.token_bytes(token, special=True).decode("utf-8", errors="replace")

    def _warm_up(self) -> float:
        """Page the weights in, so that the first request is no slower than the next.

        :returns: measured seconds per prefill token.
        """
        n = min(_WARM_UP_TOKENS, self._context.options.n_batch)
        self._decode_once(n)
        return self._decode_once(n) / n

    def _decode_once(self, n_tokens: int) -> float:
        """:returns: seconds."""
        self._context.clear_batch()
        self._context.add_tokens(0, [max(self.model.bos_token, 0)] * n_tokens, 0, output="last")
        started_s = time.perf_counter()
        self._context.decode()
        elapsed_s = time.perf_counter() - started_s
        self._context.clear_slot(0)
        return elapsed_s

    def _log_summary(self, options: LlmOptions) -> None:
        gpus = gpu_devices()
        n_layers = self.model.n_layer + 1  # llama.cpp counts the output layer too
        wanted = n_layers if options.gpu_layers is None else min(options.gpu_layers, n_layers)
        o = self._context.options
        logger.info(
            "%s: %s, %d slots x %d tokens (KV %s), %d threads, loaded in %.1f s",
            self.spec.id, self.model.description, o.n_slots, o.n_ctx, o.kv_type, o.n_threads,
            self.load_time_s,
        )  # fmt: skip
        if not gpus:
            logger.info(
                "%s: all %d layers on the CPU (no GPU in this build)", self.spec.id, n_layers
            )
            return
        logger.info(
            "%s: %d of %d layers on the GPU (%s), %d on the CPU",
            self.spec.id, wanted, n_layers, ", ".join(gpus), n_layers - wanted,
        )  # fmt: skip

    # -- requests ------------------------------------------------------------------------

    def start(
        self,
        request: InferenceRequest,
        *,
        observers: tuple[RequestObserver, ...] = (),
        on_done: Callable[[Generation, FerrumError | None], None] = lambda _g, _e: None,
    ) -> Generation:
        """Render, tokenize, check and queue a request. Runs on the request's thread.

        :raises InvalidRequest, ContextOverflow, Unsupported, QueueFull: nothing runs then.
        """
        self._runner.check_open()
        with self.model.in_use():  # samplers, too, read the vocabulary while they are made
            return self._start(self._with_template_stops(request), observers, on_done)

    def validate(self, request: InferenceRequest) -> None:
        """Check what ``start`` would check of the prompt, without running it.

        :raises InvalidRequest, ContextOverflow, Unsupported: what is wrong.
        """
        prepared = self._prompts.prepare(request)
        self._room_for_answer(prepared.tokens, request)
        if prepared.form is not None:
            self.grammars.compile_form(prepared.form)

    def _start(
        self,
        request: InferenceRequest,
        observers: tuple[RequestObserver, ...],
        on_done: Callable[[Generation, FerrumError | None], None],
    ) -> Generation:
        params = request.sampling_params
        prepared = self._prompts.prepare(request)
        prompt, form = prepared.tokens, prepared.form
        if form is not None:
            params = _finite_biases(params)
            request = msgspec.structs.replace(request, sampling_params=params)
        max_tokens = self._room_for_answer(prompt, request)
        matcher = None if form is None else self.grammars.compile_form(form)
        generation = Generation(
            request,
            prompt_tokens=prompt,
            token_bytes=prepared.token_bytes,
            new_parser=prepared.new_parser,
            hidden=prepared.hidden,
            observers=observers,
            on_done=on_done,
        )
        prediction = self._prediction_tokens(request)
        sequences: list[Sequence] = []
        try:
            for index in range(params.n):
                sequence = self._sequence(request, prompt, index, max_tokens, generation)
                sequences.append(sequence)
                if matcher is not None:
                    _constrain(sequence, matcher.clone(), params)
                if self._speculates:
                    sequence.speculator = Speculator(sequence.tokens, prediction, self._draft_model)
        except BaseException:
            for sequence in sequences:
                sequence.sampler.close()
            raise
        generation.start(self._runner, sequences)
        return generation

    def _with_template_stops(self, request: InferenceRequest) -> InferenceRequest:
        """A fallback template ends turns with text that this model has no end token for."""
        stops = self.chat_template.stop_strings
        if not stops or not isinstance(request.prompt, ChatPrompt):
            return request
        params = request.sampling_params
        return msgspec.structs.replace(
            request,
            sampling_params=msgspec.structs.replace(params, stop=(*params.stop, *stops)),
        )

    def _room_for_answer(self, prompt: list[int], request: InferenceRequest) -> int:
        params = request.sampling_params
        room = self.n_ctx - len(prompt)
        wants_none = params.max_tokens == 0 and params.prompt_logprobs is not None
        if room < (0 if wants_none else 1):
            raise ContextOverflow(
                n_prompt_tokens=len(prompt), n_ctx=self.n_ctx, param=_prompt_field(request)
            )
        return room if params.max_tokens is None else min(params.max_tokens, room)

    def _sequence(
        self,
        request: InferenceRequest,
        prompt: list[int],
        index: int,
        max_tokens: int,
        generation: Generation,
    ) -> Sequence:
        params = request.sampling_params
        now, left_s = time.perf_counter(), time_left_s(request)
        return Sequence(
            request_id=request.id,
            index=index,
            tokens=list(prompt),
            n_prompt=len(prompt),
            max_tokens=max_tokens,
            min_tokens=params.min_tokens,
            eog_tokens=self.model.eog_tokens,
            sampler=Sampler(
                self.model,
                params,
                n_ctx=self.n_ctx,
                prompt_tokens=prompt,
                choice_index=index,
                dry=self._dry,
            ),
            deliver=generation.deliver,
            priority=request.priority,
            client_id=request.client_id or "",
            arrived_s=now,
            deadline_at_s=None if left_s is None else now + left_s,
            n_logprobs=params.logprobs,
            # The prompt is the same for all choices: the first one scores it.
            n_prompt_logprobs=params.prompt_logprobs if index == 0 else None,
        )

    def _prediction_tokens(self, request: InferenceRequest) -> list[int]:
        """No more of it than an answer could repeat; no token has over 16 characters on average."""
        if not self._speculates or not request.prediction:
            return []
        text = request.prediction[: 16 * self.n_ctx]
        return self.model.tokenize(text, add_special=False, parse_special=False)[: self.n_ctx]

    # -- tokens and templates ------------------------------------------------------------

    def render(self, prompt: ChatPrompt) -> str:
        """The text that the model would see of a conversation.

        :raises InvalidRequest: a conversation the template refuses.
        """
        return self._chat.render(prompt)

    def count_tokens(self, prompt: Prompt) -> int:
        """How many tokens a prompt is; it need not leave room for an answer.

        :raises InvalidRequest: as ``start``.
        """
        return len(self._prompts.tokens(prompt))

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> TokenIds:
        return tuple(
            self.model.tokenize(text, add_special=add_special, parse_special=parse_special)
        )

    def token_bytes(self, tokens: TokenIds) -> tuple[bytes, ...]:
        """What each token stands for, control tokens as they are written.

        :raises InvalidRequest: naming the first that is no token.
        """
        self.model.check_tokens(tokens, param="tokens")
        return tuple(self.model.token_bytes(token, special=True) for token in tokens)

    # -- facts and end -------------------------------------------------------------------

    @property
    def runner(self) -> Runner:
        return self._runner

    @property
    def n_cells_used(self) -> int:
        return self._slots.n_cells_used

    def close(self, error: FerrumError | None = None) -> None:
        """End everything that runs with ``error``, then free the context and the weights."""
        self._runner.stop(error)
        self._owned.close()


def _finite_biases(params: SamplingParams) -> SamplingParams:
    """Biases that rule nothing out: with a grammar it might be all that is allowed, and a row
    without a possible token would abort in native code. ``_constrain`` sees to ``ignore_eos``."""
    biases = {t: max(b, _LOWEST_BIAS) for t, b in params.logit_bias.items()}
    return msgspec.structs.replace(params, logit_bias=biases, ignore_eos=False)


def _constrain(sequence: Sequence, matcher: Matcher, params: SamplingParams) -> None:
    """Let a grammar decide what a sequence may write."""
    sequence.matcher = matcher
    if params.ignore_eos:
        sequence.min_tokens = sequence.max_tokens
    if sequence.may_jump:
        sequence.opening = matcher.take_forced(sequence.max_tokens)
        for token in sequence.opening:
            sequence.sampler.accept(token)


def _prompt_field(request: InferenceRequest) -> str:
    return "messages" if isinstance(request.prompt, ChatPrompt) else "prompt"


def file_fingerprint(path: str) -> str:
    """Tells model files apart without reading gigabytes: size, and samples all through it."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest.update(str(size).encode())
        for i in range(_N_FINGERPRINT_SAMPLES):
            file.seek(i * max(0, size - MIB // 16) // (_N_FINGERPRINT_SAMPLES - 1))
            digest.update(file.read(MIB // 16))
    return digest.hexdigest()


def physical_cores() -> int:
    """Cores this process may use; hyper-threads do not speed llama.cpp up."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if sys.platform == "linux":
        cores = min(cores, len(os.sched_getaffinity(0)))
    return cores
