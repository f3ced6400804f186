"""Has the model read a conversation before its answer is asked for, while the user still speaks."""

from __future__ import annotations

import logging
import secrets
import threading
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
        self._lock = threading.Lock()
        self._is_busy = False
        self._is_closed = False
        self._stream: InferenceStream | None = None

    def offer(self, asker: Asker, prompt: ChatPrompt) -> None:
        """Read ``prompt``, unless another is being read."""
        with self._lock:
            if not self._is_busy and not self._is_closed:
                self._thread.submit(self._read, asker, prompt)
                self._is_busy = True

    def close(self) -> None:
        """Read no more. What is being read ends, also if the engine has yet to begin with it."""
        with self._lock:
            self._is_closed = True
            stream = self._stream
        if stream is not None:
            stream.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self, asker: Asker, prompt: ChatPrompt) -> None:
        try:
            request = asker.request(f"prefill-{secrets.token_hex(8)}", prompt, _ONE_TOKEN)
            with asker.engine.infer_stream(request) as stream:
                if self._is_still_wanted(stream):
                    for _ in stream:
                        pass
        except Exception as error:  # the answer itself will tell, if it still matters
            log.debug("A prompt was not read ahead", exc_info=error)
        finally:
            with self._lock:
                self._stream = None
                self._is_busy = False

    def _is_still_wanted(self, stream: InferenceStream) -> bool:
        """From now on ``close`` ends ``stream``, unless it was called before."""
        with self._lock:
            if not self._is_closed:
                self._stream = stream
            return not self._is_closed
