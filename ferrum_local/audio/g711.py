"""G.711, the 8 bits of telephones: mu-law and A-law, as ITU-T G.711 has them.

Codes are 8,000 a second. PyAV could do it too, but with a codec's delay and state.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ferrum_local.audio.decode import Samples

RATE_HZ = 8_000
_Integers: TypeAlias = npt.NDArray[np.integer[Any]]
Law: TypeAlias = Literal["mu", "a"]
_BIAS = 0x84  # of mu-law, in 16-bit samples
_CLIP = 32_635


def decode(codes: bytes, law: Law) -> Samples:
    """Float samples within ±1."""
    return _table(law)[np.frombuffer(codes, np.uint8)].astype(np.float32) / 32768.0


def encode(samples: Samples, law: Law) -> bytes:
    s16 = (np.clip(samples, -1.0, 1.0) * 32767.0).astype(np.int32)
    return (_to_mu(s16) if law == "mu" else _to_a(s16)).astype(np.uint8).tobytes()


@functools.cache
def _table(law: Law) -> _Integers:
    """What each of the 256 codes stands for, as a 16-bit sample."""
    codes = np.arange(256, dtype=np.int32)
    if law == "mu":
        codes = ~codes & 0xFF
        exponent, mantissa = (codes >> 4) & 7, codes & 15
        size = (((mantissa << 3) + _BIAS) << exponent) - _BIAS
        return np.where(codes & 0x80, -size, size)
    codes ^= 0x55
    exponent, mantissa = (codes >> 4) & 7, codes & 15
    size = (mantissa << 4) + 8
    size = np.where(exponent > 0, (size + 0x100) << np.maximum(exponent - 1, 0), size)
    return np.where(codes & 0x80, size, -size)


def _to_mu(s16: _Integers) -> _Integers:
    size = np.minimum(np.abs(s16), _CLIP) + _BIAS
    exponent = np.maximum(_highest_bit(size) - 7, 0)
    mantissa = (size >> (exponent + 3)) & 15
    return np.asarray(~(np.where(s16 < 0, 0x80, 0) | (exponent << 4) | mantissa) & 0xFF)


def _to_a(s16: _Integers) -> _Integers:
    # Negative ones by their complement, as the standard's table has its lowest step.
    size = np.where(s16 < 0, ~s16, s16)
    exponent = np.maximum(_highest_bit(size) - 7, 0)
    mantissa = (size >> np.where(exponent > 0, exponent + 3, 4)) & 15
    return np.asarray((np.where(s16 < 0, 0, 0x80) | (exponent << 4) | mantissa) ^ 0x55)


def _highest_bit(values: _Integers) -> _Integers:
    """Its number, counted from 0; of 0 too."""
    return (np.frexp(np.maximum(values, 1).astype(np.float64))[1] - 1).astype(np.int32)
