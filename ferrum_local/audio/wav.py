"""WAV headers and 16-bit samples."""

from __future__ import annotations

import struct

import numpy as np

from ferrum_local.audio.decode import Samples

HEADER_BYTES = 44
UNKNOWN_SIZE = 0xFFFFFFFF  # what players take for "until the stream ends"
MAX_DATA_BYTES = UNKNOWN_SIZE - 36


def header(sample_rate_hz: int, n_data_bytes: int | None) -> bytes:
    """The header of 16-bit mono. None: the size is not known when the header is sent."""
    known = n_data_bytes is not None and n_data_bytes <= MAX_DATA_BYTES
    data = n_data_bytes if known and n_data_bytes is not None else UNKNOWN_SIZE
    riff = data + 36 if known else UNKNOWN_SIZE
    layout = "<4sI4s4sIHHIIHH4sI"
    return struct.pack(
        layout, b"RIFF", riff, b"WAVE", b"fmt ", 16, 1, 1, sample_rate_hz, sample_rate_hz * 2, 2,
        16, b"data", data,
    )  # fmt: skip


def to_s16(samples: Samples) -> bytes:
    """Float samples as little-endian 16 bits; what is beyond ±1 is clipped."""
    return (np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()


def from_s16(data: bytes) -> Samples:
    """Little-endian 16 bits as float samples."""
    return np.frombuffer(data, "<i2").astype(np.float32) / 32768.0
