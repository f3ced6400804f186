"""Has the model read a conversation before its answer is asked for, while the user still speaks."""

from __future__ import annotations

import logging
import secrets
from concurrent.futures import ThreadPoolExecutor

from ferrum_local.engine.contracts import InferenceStream
from ferrum_local.http.realtime.answer import Asker
from ferrum_local.types import ChatPrompt, SamplingParams

log = logging.getLogger(__name__)

_ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0)


class Prefill:
    """One request for a single token at a time, thrown away: what stays is the evaluated prompt,
    with which the answer's own begins."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="realtime-prefill")
        self._is_busy = False
        self._stream: InferenceStream | None = None

    def offer(self, asker: Asker, prompt: ChatPrompt) -> None:
        """Read ``prompt``, unless another is being read."""
        if not self._is_busy:
            self._is_busy = True
            self._thread.submit(self._read, asker, prompt)

    def close(self) -> None:
        if (stream := self._stream) is not None:
            stream.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self, asker: Asker, prompt: ChatPrompt) -> None:
        request = asker.request(f"prefill-{secrets.token_hex(8)}", prompt, _ONE_TOKEN)
        try:
            with asker.engine.infer_stream(request) as self._stream:
                for _ in self._stream:
                    pass
        except Exception as error:  # the answer itself will tell, if it still matters
            log.debug("A prompt was not read ahead", exc_info=error)
        finally:
            self._stream = None
            self._is_busy = False
