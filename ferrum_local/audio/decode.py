"""Any container that FFmpeg reads → mono float32 samples, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from ferrum_local.errors import AudioTooLong, InvalidAudio

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.resampler import AudioResampler
    from av.container import InputContainer

Samples: TypeAlias = npt.NDArray[np.float32]

BLOCK_S = 1.0
# Playlists and the like would read what else is on this machine or the network, and a session
# description would wait on UDP ports. FFmpeg opens those through its protocols; the file itself
# comes through Python.
_OPEN_OPTIONS = {"protocol_whitelist": "none"}


def decode(
    file: BinaryIO, *, sample_rate_hz: int, max_duration_s: float = float("inf")
) -> Iterator[Samples]:
    """Yield blocks of about a second of the file's first audio track, mixed down to mono.

    Memory stays small however long the file is.

    :param file: seekable; read from its beginning.
    :raises InvalidAudio: empty, not audio, or nothing in it can be decoded.
    :raises AudioTooLong: the recording goes on after ``max_duration_s``.
    """
    n_most = max_duration_s * sample_rate_hz
    n_total = 0
    with closing(_open(file)) as container:
        frames = _raw_frames(container, sample_rate_hz)
        for block in _blocks(frames, int(sample_rate_hz * BLOCK_S)):
            n_total += len(block)
            if n_total > n_most:
                raise AudioTooLong(max_duration_s)
            yield block
    if n_total == 0:
        raise _nothing_decoded()


def checked_duration_s(file: BinaryIO, *, sample_rate_hz: int) -> float | None:
    """As ``declared_duration_s``, of a recording whose first sound could be decoded.

    :raises InvalidAudio: as ``decode``.
    """
    with closing(_open(file)) as container:
        if next(_raw_frames(container, sample_rate_hz), None) is None:
            raise _nothing_decoded()
        return _duration_s(container)


def declared_duration_s(file: BinaryIO) -> float | None:
    """What the container says of its length; None if it does not, or is no audio."""
    try:
        with closing(_open(file)) as container:
            return _duration_s(container)
    except InvalidAudio:
        return None
    finally:
        file.seek(0)


def _duration_s(container: InputContainer) -> float | None:
    stream = container.streams.audio[0]
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return container.duration / 1_000_000 if container.duration is not None else None


def _nothing_decoded() -> InvalidAudio:
    return InvalidAudio("file: no sound in it could be decoded")


def _open(file: BinaryIO) -> InputContainer:
    import av

    file.seek(0)
    if not file.read(1):
        raise InvalidAudio("file: is empty")
    file.seek(0)
    try:
        container = av.open(file, mode="r", metadata_errors="ignore", options=dict(_OPEN_OPTIONS))
    except (av.FFmpegError, ValueError, EOFError) as error:
        raise InvalidAudio("file: is not audio or video that can be read") from error
    if not container.streams.audio:
        container.close()
        raise InvalidAudio("file: has no audio track")
    return container


def _raw_frames(container: InputContainer, sample_rate_hz: int) -> Iterator[Samples]:
    import av

    stream = container.streams.audio[0]
    resampler: AudioResampler | None = None
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
            frames = packet.decode()
        except StopIteration:
            break
        except av.error.EOFError:
            break
        except (av.FFmpegError, ValueError):
            # One damaged packet; what follows may be whole. A file that is damaged all
            # through ends as one with no sound.
            continue
        for frame in frames:
            resampler = resampler or _resampler(sample_rate_hz)
            try:
                yield from _resampled(resampler, frame)
            except ValueError:  # the format changed half-way: chained and joined files
                resampler = _resampler(sample_rate_hz)
                yield from _resampled(resampler, frame)
    if resampler is not None:
        yield from _resampled(resampler, None)


def _resampler(sample_rate_hz: int) -> AudioResampler:
    from av.audio.resampler import AudioResampler

    # In 16 bits, FFmpeg mixes channels down to their mean; as floats their sum may pass 1.
    return AudioResampler(format="s16", layout="mono", rate=sample_rate_hz)


def _resampled(resampler: AudioResampler, frame: AudioFrame | None) -> Iterator[Samples]:
    for out in resampler.resample(frame):
        yield out.to_ndarray().reshape(-1).astype(np.float32) / 32768.0


def _blocks(frames: Iterator[Samples], n_block: int) -> Iterator[Samples]:
    """Join the small pieces that come to blocks of ``n_block`` samples."""
    waiting: list[Samples] = []
    n_waiting = 0
    for samples in frames:
        waiting.append(samples)
        n_waiting += len(samples)
        if n_waiting >= n_block:
            yield np.concatenate(waiting)
            waiting, n_waiting = [], 0
    if n_waiting:
        yield np.concatenate(waiting)
