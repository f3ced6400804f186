"""Functions of llama.cpp that return at once, called without letting go of the GIL.

Each ordinary call through ctypes lets it go, and where many requests are being read it is 5 ms
until the next turn: far more than these take. A step makes a dozen such calls.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

_bound = llama_cpp.llama_cpp._lib
_held = ctypes.PyDLL(_bound._name, handle=_bound._handle)


def _quick(name: str) -> Any:
    """``llama_cpp``'s function of this name, with its types."""
    known = getattr(_bound, name)
    function = getattr(_held, name)
    function.argtypes, function.restype = known.argtypes, known.restype
    return function


llama_get_embeddings_seq = _quick("llama_get_embeddings_seq")
llama_get_logits_ith = _quick("llama_get_logits_ith")
llama_get_memory = _quick("llama_get_memory")
llama_memory_clear = _quick("llama_memory_clear")
llama_memory_seq_cp = _quick("llama_memory_seq_cp")
llama_memory_seq_pos_max = _quick("llama_memory_seq_pos_max")
llama_memory_seq_pos_min = _quick("llama_memory_seq_pos_min")
llama_memory_seq_rm = _quick("llama_memory_seq_rm")
llama_sampler_accept = _quick("llama_sampler_accept")
llama_set_n_threads = _quick("llama_set_n_threads")


def floats_at(pointer: Any, n: int) -> npt.NDArray[np.float32]:
    """``n`` floats of llama.cpp's memory as a view; numpy's own way takes six times as long.

    :raises ValueError: the pointer is null.
    """
    array = (ctypes.c_float * n).from_address(ctypes.addressof(pointer.contents))
    return np.frombuffer(array, np.float32)  # type: ignore[call-overload, no-any-return]
