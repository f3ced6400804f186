"""The ONNX session of a voice, which gives memory back when the voice rests."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

_REST_S = 2.0
_SPIN_US = "100"
_KEPT_IDS = 100  # phoneme ids, some 7 words, for which memory is kept
_FEW_IDS = 5  # a beginning and a sound or two
_SHRINK = "memory.enable_memory_arena_shrinkage"


class VoiceSession:
    """As much of ``onnxruntime.InferenceSession`` as Piper uses.

    The runtime keeps room for the longest clause ever, 300 MB for 20 words and twice that for 40,
    and it gives room back only at the end of a run. To ask for that after every long clause makes
    speech a tenth slower, so it is asked for in a short run once nothing was said for a while.

    :raises Exception: onnxruntime has a class for each sort of damaged file.
    """

    def __init__(self, path: str, *, n_threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = n_threads
        options.inter_op_num_threads = 1
        # Long enough to meet the next node of the graph without a sleep, too short to take the
        # cores from chat; and no spinning between two clauses.
        options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            path, sess_options=options, providers=["CPUExecutionProvider"]
        )
        self._lock = threading.Lock()
        self._n_running = 0
        self._idle_since_s = 0.0
        self._last_inputs: dict[str, Any] | None = None  # set while there is memory to give back
        self._is_watched = False

    def run(self, output_names: Any, inputs: dict[str, Any]) -> Any:
        """May be called from several threads."""
        with self._lock:
            self._n_running += 1
        try:
            return self._session.run(output_names, inputs)
        finally:
            with self._lock:
                self._n_running -= 1
                self._idle_since_s = time.monotonic()
                if inputs["input"].shape[-1] > _KEPT_IDS:
                    self._last_inputs = inputs
                must_watch = self._last_inputs is not None and not self._is_watched
                self._is_watched |= must_watch
            if must_watch:
                self._look_in(_REST_S)

    def _look_in(self, delay_s: float) -> None:
        # Held weakly: an unloaded voice is freed at once.
        timer = threading.Timer(delay_s, _look, [weakref.ref(self)])
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError as error:  # no more threads: the next clause tries again
            logger.debug("a voice's memory is not watched: %s", error)
            with self._lock:
                self._is_watched = False

    def _give_back(self) -> None:
        """Now, or look again when the voice has rested."""
        with self._lock:
            idle_s = 0.0 if self._n_running else time.monotonic() - self._idle_since_s
            has_rested = idle_s >= _REST_S
            if has_rested:
                inputs, self._last_inputs = self._last_inputs, None
                self._is_watched = False
        if not has_rested:
            self._look_in(_REST_S - idle_s)
            return
        if inputs is None:
            return
        import onnxruntime

        options = onnxruntime.RunOptions()
        options.add_run_config_entry(_SHRINK, "cpu:0")
        try:
            self._session.run(None, _shortened(inputs), options)
        except Exception:  # onnxruntime has a class for each sort of fault; nobody waits for this
            logger.warning("a voice could not give memory back", exc_info=True)


def _look(session: weakref.ref[VoiceSession]) -> None:
    if (alive := session()) is not None:
        alive._give_back()


def _shortened(inputs: dict[str, Any]) -> dict[str, Any]:
    """The same voice and speaker with next to nothing to say."""
    return {
        **inputs,
        "input": inputs["input"][:, :_FEW_IDS],
        "input_lengths": np.full_like(inputs["input_lengths"], _FEW_IDS),
    }
