"""The yardstick: llama.cpp called through ctypes in a plain loop, without server or scheduler.

Runs as a process of its own, so that neither its memory nor its threads are the benchmark's. Each
line on stdin is a JSON command, each line on stdout its JSON answer; it sleeps in between.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp

N_BATCH = 512  # llama.cpp's default, and the engine's
FLASH_ATTN = {"on": 1, "off": 0}
Messages = list[dict[str, str]]


class BareLoop:
    """One model. Contexts are made per measurement: as large as the server's, one at a time."""

    def __init__(self, path: str, *, ctx_size: int, slots: int, threads: int) -> None:
        self._ctx_size, self._slots, self._threads = ctx_size, slots, threads
        model = llama_cpp.llama_model_load_from_file(
            os.fsencode(path), llama_cpp.llama_model_default_params()
        )
        if not model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self._model = model
        vocab = llama_cpp.llama_model_get_vocab(model)
        assert vocab is not None
        self._vocab = vocab
        self._batch = llama_cpp.llama_batch_init(N_BATCH, 0, 1)

    # -- commands ---------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        name = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self._model, name, len(name))
        return {
            "model": name.value.decode(),
            "llama_cpp_python": llama_cpp.__version__,
            "system": llama_cpp.llama_print_system_info().decode(),
        }

    def count(self, text: str) -> dict[str, Any]:
        return {"n_tokens": len(self._tokenize(text))}

    def decode(self, messages: Messages, n_tokens: int, flash_attn: str) -> dict[str, Any]:
        """One sequence, greedy: when each of ``n_tokens`` tokens was there, in seconds."""
        prompt = self._tokenize(self._render(messages))
        ctx = self._context(flash_attn)
        sampler = llama_cpp.llama_sampler_init_greedy()
        try:
            self._warm_up(ctx)
            index = self._prefill(ctx, [(0, 0, prompt)])
            times_s = []
            for position in range(len(prompt), len(prompt) + n_tokens):
                token = llama_cpp.llama_sampler_sample(sampler, ctx, index)
                times_s.append(time.perf_counter())
                index = self._prefill(ctx, [(0, position, [token])])
            return {"n_prompt": len(prompt), "times_s": times_s}
        finally:
            llama_cpp.llama_sampler_free(sampler)
            llama_cpp.llama_free(ctx)

    def shared_prefill(self, system: str, users: Sequence[str], flash_attn: str) -> dict[str, Any]:
        """Evaluate what the conversations share once, copy it, evaluate the rest of each.

        :returns: seconds of all that, and how many tokens both parts had.
        """
        prompts = [
            self._tokenize(
                self._render(
                    [{"role": "system", "content": system}, {"role": "user", "content": user}]
                )
            )
            for user in users
        ]
        n_shared = len(os.path.commonprefix(prompts))
        ctx = self._context(flash_attn)
        memory = llama_cpp.llama_get_memory(ctx)
        try:
            self._warm_up(ctx)
            started = time.perf_counter()
            self._prefill(ctx, [(0, 0, prompts[0][:n_shared])])
            for slot in range(1, len(prompts)):
                llama_cpp.llama_memory_seq_cp(memory, 0, slot, -1, -1)
            self._prefill(ctx, [(slot, n_shared, p[n_shared:]) for slot, p in enumerate(prompts)])
            seconds = time.perf_counter() - started
        finally:
            llama_cpp.llama_free(ctx)
        return {
            "seconds": seconds,
            "n_prefix": n_shared,
            "n_suffixes": sum(len(p) - n_shared for p in prompts),
        }

    # -- llama.cpp --------------------------------------------------------------------------

    def _context(self, flash_attn: str) -> int:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = self._ctx_size * self._slots
        params.n_seq_max = self._slots
        params.n_batch = params.n_ubatch = N_BATCH
        params.n_threads = params.n_threads_batch = self._threads
        params.flash_attn_type = FLASH_ATTN[flash_attn]
        params.kv_unified = False
        params.no_perf = True
        ctx = llama_cpp.llama_init_from_model(self._model, params)
        if not ctx:
            raise RuntimeError(f"no context of {self._slots} x {self._ctx_size} tokens")
        return int(ctx)

    def _warm_up(self, ctx: int) -> None:
        self._prefill(ctx, [(0, 0, [0] * 32)])
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(ctx), 0, -1, -1)

    def _prefill(self, ctx: int, parts: Sequence[tuple[int, int, list[int]]]) -> int:
        """Evaluate tokens; the last one of each part gets logits.

        :param parts: slot, first position, tokens.
        :returns: batch index of the very last token, for sampling.
        """
        batch = self._batch
        batch.n_tokens = 0
        for slot, first, tokens in parts:
            for i, token in enumerate(tokens):
                if batch.n_tokens == N_BATCH:
                    self._run(ctx)
                n = batch.n_tokens
                batch.token[n] = token
                batch.pos[n] = first + i
                batch.n_seq_id[n] = 1
                batch.seq_id[n][0] = slot
                batch.logits[n] = i == len(tokens) - 1
                batch.n_tokens += 1
        last = int(batch.n_tokens) - 1
        self._run(ctx)
        return last

    def _run(self, ctx: int) -> None:
        status = llama_cpp.llama_decode(ctx, self._batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        llama_cpp.llama_synchronize(ctx)
        self._batch.n_tokens = 0

    def _tokenize(self, text: str) -> list[int]:
        data = text.encode()
        tokens = (llama_cpp.llama_token * (len(data) + 8))()
        n = llama_cpp.llama_tokenize(self._vocab, data, len(data), tokens, len(tokens), True, True)
        return list(tokens[:n])

    def _render(self, messages: Messages) -> str:
        """The prompt of a conversation, by llama.cpp's own reading of the model's template."""
        chat = (llama_cpp.llama_chat_message * len(messages))()
        for entry, message in zip(chat, messages, strict=True):
            entry.role, entry.content = message["role"].encode(), message["content"].encode()
        template = llama_cpp.llama_model_chat_template(self._model, None) or b"chatml"
        size = 1024 + 2 * sum(len(m["content"].encode()) for m in messages)
        text = ctypes.create_string_buffer(size)
        n = llama_cpp.llama_chat_apply_template(template, chat, len(messages), True, text, size)
        if not 0 <= n <= size:
            raise RuntimeError("llama.cpp does not know this model's chat template")
        return text.raw[:n].decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--ctx-size", type=int, required=True, help="tokens of one slot")
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    loop = BareLoop(
        arguments.model,
        ctx_size=arguments.ctx_size,
        slots=arguments.slots,
        threads=arguments.threads,
    )
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "describe": loop.describe,
        "count": loop.count,
        "decode": loop.decode,
        "shared_prefill": loop.shared_prefill,
    }
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        answer = commands[command.pop("command")](**command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
