"""The yardstick for embeddings: llama.cpp through ctypes, texts packed into steps, no server.

``python scripts/bench/bare_embeddings.py MODEL THREADS STEP_TOKENS``: for each line on stdin, a
JSON list of texts, one line on stdout: the seconds that tokenizing and embedding them took.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time

import llama_cpp

MAX_SEQUENCES = 128
MAX_BATCH = 512


class BareEmbeddings:
    def __init__(self, path: str, threads: int, step_tokens: int) -> None:
        model = llama_cpp.llama_model_load_from_file(
            os.fsencode(path), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = MAX_BATCH
        params.n_seq_max = MAX_SEQUENCES
        params.n_threads = params.n_threads_batch = threads
        params.embeddings = True
        params.kv_unified = True
        params.flash_attn_type = 1  # on: faster here with steps from 64 tokens on
        ctx = llama_cpp.llama_init_from_model(model, params) if model else None
        if not model or not ctx:
            raise SystemExit(f"llama.cpp cannot load {path}")
        vocab = llama_cpp.llama_model_get_vocab(model)
        assert vocab is not None
        self._ctx, self._vocab = ctx, vocab
        self._width = llama_cpp.llama_model_n_embd_out(model)
        self._step_tokens = step_tokens
        self._batch = llama_cpp.llama_batch_init(MAX_BATCH, 0, 1)
        self._tokens = (llama_cpp.llama_token * MAX_BATCH)()

    def embed(self, texts: list[str]) -> int:
        """Embed all; returns how many vectors came out."""
        n_vectors = n_sequences = 0
        self._batch.n_tokens = 0
        for text in texts:
            data = text.encode()
            n = llama_cpp.llama_tokenize(
                self._vocab, data, len(data), self._tokens, MAX_BATCH, True, False
            )
            is_full = self._batch.n_tokens + n > self._step_tokens
            if n_sequences and (is_full or n_sequences == MAX_SEQUENCES):
                n_vectors += self._step(n_sequences)
                n_sequences = self._batch.n_tokens = 0
            for i in range(n):
                at = self._batch.n_tokens
                self._batch.token[at] = self._tokens[i]
                self._batch.pos[at] = i
                self._batch.n_seq_id[at] = 1
                self._batch.seq_id[at][0] = n_sequences
                self._batch.logits[at] = 1
                self._batch.n_tokens = at + 1
            n_sequences += 1
        return n_vectors + self._step(n_sequences)

    def _step(self, n_sequences: int) -> int:
        if llama_cpp.llama_decode(self._ctx, self._batch) != 0:
            raise SystemExit("llama_decode failed")
        row = (ctypes.c_float * self._width)()
        for i in range(n_sequences):
            vector = llama_cpp.llama_get_embeddings_seq(self._ctx, i)
            ctypes.memmove(row, vector, ctypes.sizeof(row))
        return n_sequences


def main() -> None:
    path, threads, step_tokens = sys.argv[1:]
    llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
    loop = BareEmbeddings(path, int(threads), int(step_tokens))
    for line in sys.stdin:
        texts = json.loads(line)
        started = time.perf_counter()
        n_vectors = loop.embed(texts)
        assert n_vectors == len(texts)
        print(time.perf_counter() - started, flush=True)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _quiet(_level: int, _text: bytes, _user_data: ctypes.c_void_p) -> None:
    """Drop llama.cpp's log."""


if __name__ == "__main__":
    main()
