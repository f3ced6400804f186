"""A loaded GGUF model: weights, metadata and tokenizer. Everything here is thread-safe."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence

import llama_cpp

from ferrum_local.errors import InvalidRequest, ModelLoadError, Unavailable
from ferrum_local.llm import native_log

logger = logging.getLogger(__name__)

_ALL_LAYERS = -1  # llama.cpp: a negative n_gpu_layers means every layer
_CLASH = "std::bad_cast"  # see cpp_runtime.py
_CLASH_HELP = (
    "; a library that this program imported earlier brought a C++ runtime of its own: "
    "import ferrum_local.llm.model before it"
)


class LlamaModel:
    """Owns one ``llama_model``.

    :param path: a GGUF file (the first part of a split one).
    :param gpu_layers: layers to offload; None: all, where the build has a GPU backend.
    :param on_progress: gets the loaded part, 0.0 to 1.0, often, from this thread.
    :raises ModelLoadError: with llama.cpp's own first error line.
    """

    def __init__(
        self,
        path: str,
        *,
        gpu_layers: int | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        log = native_log.install()
        log.recent.clear()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = _ALL_LAYERS if gpu_layers is None else gpu_layers
        if on_progress is not None:  # params keeps the callback alive through the load
            params.progress_callback = _progress_callback(on_progress)
        # fsencode: llama.cpp takes bytes; on Windows it expects UTF-8, which fsencode gives.
        handle = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        if not handle:
            reasons = log.last_errors()
            reason = f" ({reasons[0]})" if reasons else ""
            if _CLASH in reason:
                reason += _CLASH_HELP
            raise ModelLoadError(f"{path}: llama.cpp cannot load this model{reason}")
        self.path = path
        self.handle = handle
        vocab = llama_cpp.llama_model_get_vocab(handle)
        assert vocab is not None
        self._vocab = vocab
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(vocab)
        missing = self._byte_without_token()
        if missing is not None:
            llama_cpp.llama_model_free(handle)
            raise ModelLoadError(
                f"{path}: its vocabulary has no token for the byte 0x{missing:02X}, so not every "
                "text can be read; the file is damaged or was converted wrongly"
            )
        self.n_ctx_train: int = llama_cpp.llama_model_n_ctx_train(handle)
        self.n_layer: int = llama_cpp.llama_model_n_layer(handle)
        self.n_swa: int = llama_cpp.llama_model_n_swa(handle)
        self.is_recurrent = bool(
            llama_cpp.llama_model_is_recurrent(handle) or llama_cpp.llama_model_is_hybrid(handle)
        )
        self.bos_token: int = llama_cpp.llama_vocab_bos(vocab)
        self.eos_token: int = llama_cpp.llama_vocab_eos(vocab)
        self.adds_bos = bool(llama_cpp.llama_vocab_get_add_bos(vocab))
        self.eog_tokens = frozenset(
            t for t in range(self.n_vocab) if llama_cpp.llama_vocab_is_eog(vocab, t)
        )
        self.fim_tokens: tuple[int, int, int] = (
            llama_cpp.llama_vocab_fim_pre(vocab),
            llama_cpp.llama_vocab_fim_suf(vocab),
            llama_cpp.llama_vocab_fim_mid(vocab),
        )
        self._users = 0
        self._unused = threading.Condition()
        self._pieces: dict[int, bytes] = {}
        self._pieces_special: dict[int, bytes] = {}

    def _byte_without_token(self) -> int | None:
        """A byte that llama.cpp would end the process for; None: it knows all of them.

        Only SentencePiece vocabularies fall back to bytes that way.
        """
        if llama_cpp.llama_vocab_type(self._vocab) != llama_cpp.LLAMA_VOCAB_TYPE_SPM:
            return None
        # Either form will do: byte_to_token in llama-vocab.cpp.
        byte_of = {bytes([byte]): byte for byte in range(256)}
        byte_of |= {b"<0x%02X>" % byte: byte for byte in range(256)}
        missing = set(range(256))
        for token in range(self.n_vocab):  # they are the first ones, as a rule
            text = llama_cpp.llama_vocab_get_text(self._vocab, token)
            missing.discard(byte_of.get(text, -1))
            if not missing:
                return None
        return min(missing)

    @property
    def vocab(self) -> int:
        """The raw ``llama_vocab`` pointer, for samplers."""
        return int(self._vocab)

    @property
    def description(self) -> str:
        """Architecture, parameters and quantisation, e.g. ``llama 135M Q4_1``."""
        buffer = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self.handle, buffer, len(buffer))
        words = buffer.value.decode("utf-8", errors="replace").split()
        # llama.cpp guesses the size from the number of layers.
        n_millions = llama_cpp.llama_model_n_params(self.handle) / 1e6
        size = f"{n_millions:.0f}M" if n_millions < 1000 else f"{n_millions / 1000:.1f}B"
        return " ".join([*words[:1], size, *words[2:]])

    @property
    def size_bytes(self) -> int:
        return int(llama_cpp.llama_model_size(self.handle))

    @property
    def chat_template(self) -> str | None:
        """The GGUF's own chat template, if it has one."""
        template = llama_cpp.llama_model_chat_template(self.handle, None)
        return template.decode("utf-8", errors="replace") if template else None

    @functools.cached_property
    def max_token_bytes(self) -> int:
        """Bytes of the longest token: no text has fewer tokens than its length over this."""
        return max(len(self.token_bytes(t, special=True)) for t in range(self.n_vocab)) or 1

    def load_adapter(self, path: str) -> int:
        """Load a LoRA adapter; it is freed with the model.

        :returns: its handle, for contexts.
        :raises ModelLoadError: it is no adapter for this model.
        """
        log = native_log.install()
        log.recent.clear()
        handle = llama_cpp.llama_adapter_lora_init(self.handle, os.fsencode(path))
        if not handle:
            reasons = log.last_errors()
            raise ModelLoadError(
                f"{path}: is no LoRA adapter for {self.path}"
                + (f" ({reasons[0]})" if reasons else "")
            )
        return ctypes.cast(handle, ctypes.c_void_p).value or 0

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the weights and the vocabulary from being freed within the block.

        :raises Unavailable: they are gone already.
        """
        with self._unused:
            if not self.handle:
                raise Unavailable("The model was unloaded.", retry_after_s=5)
            self._users += 1
        try:
            yield
        finally:
            with self._unused:
                self._users -= 1
                self._unused.notify_all()

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of ``text``.

        :param add_special: add BOS (and EOS) where the model wants them.
        :param parse_special: turn the text of control tokens into those tokens.
        """
        # Lone surrogates can come out of JSON escapes; no tokenizer has them.
        data = text.encode("utf-8", errors="replace")
        capacity = len(data) + 8
        while True:
            tokens = (llama_cpp.llama_token * capacity)()
            with self.in_use():
                n = llama_cpp.llama_tokenize(
                    self._vocab, data, len(data), tokens, capacity, add_special, parse_special
                )
            if n >= 0:
                return list(tokens[:n])
            capacity = -n

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """Raw bytes of one token; control tokens give ``b""`` unless ``special``."""
        pieces = self._pieces_special if special else self._pieces
        piece = pieces.get(token)
        if piece is None:
            piece = self._read_piece(token, special)
            pieces[token] = piece
        return piece

    def vocabulary_text(self, token: int) -> str:
        """A token as the vocabulary has it, with the marks of its kind of tokenizer."""
        text = llama_cpp.llama_vocab_get_text(self._vocab, token)
        return (text or b"").decode("utf-8", errors="replace")

    def _read_piece(self, token: int, special: bool) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            with self.in_use():
                n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            size = -n

    def check_tokens(self, tokens: Sequence[int], *, param: str) -> None:
        """Refuse ids outside the vocabulary before they reach C code.

        :raises InvalidRequest: naming the first bad position.
        """
        for i, token in enumerate(tokens):
            if not 0 <= token < self.n_vocab:
                raise InvalidRequest(
                    f"{param}[{i}]: expected a token id from 0 to {self.n_vocab - 1}, got {token}",
                    param=f"{param}[{i}]",
                )

    def close(self) -> None:
        """Free the weights once nobody uses them. No context may be alive any more."""
        with self._unused:
            handle, self.handle = self.handle, 0
            self._unused.wait_for(lambda: self._users == 0)
        if handle:
            llama_cpp.llama_model_free(handle)


def _progress_callback(on_progress: Callable[[float], None]) -> object:
    def report(fraction: float, _user_data: int | None) -> bool:
        try:
            on_progress(fraction)
        except Exception:
            logger.exception("Reporting the progress of a load failed")
        return True  # False would end the load

    return llama_cpp.llama_progress_callback(report)
