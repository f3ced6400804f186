"""Loading a Whisper model, without any network, and how many threads it gets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil

from ferrum_local.audio_types import SttOptions
from ferrum_local.errors import ModelLoadError
from ferrum_local.stt.files import check_whisper_dir

if TYPE_CHECKING:
    from faster_whisper import WhisperModel


def n_threads(options: SttOptions) -> int:
    """Half of the cores for one transcription, so that chat is not choked by it."""
    return options.threads or max(1, _n_cores() // 2)


def n_workers(options: SttOptions) -> int:
    """Two at once: a short recording need not wait for a long one."""
    return options.workers or min(2, _n_cores())


LIVE_WORKERS = 1  # beside those: for speech that is written down while it is spoken


class Whisper:
    """A loaded model. Several threads may use it at once, up to its number of workers."""

    def __init__(self, path: str, options: SttOptions) -> None:
        """:raises ModelLoadError: the files are no model, or damaged."""
        check_whisper_dir(path)
        import ctranslate2
        from faster_whisper import WhisperModel

        on_gpu = ctranslate2.get_cuda_device_count() > 0
        try:
            self.native: WhisperModel = WhisperModel(
                path,  # an existing directory: nothing is ever looked up on a hub
                device="cuda" if on_gpu else "cpu",
                compute_type="default" if on_gpu else "int8",
                cpu_threads=n_threads(options),
                num_workers=n_workers(options) + LIVE_WORKERS,
                local_files_only=True,
            )
        except Exception as error:  # CTranslate2 and tokenizers raise plain ones for bad files
            raise ModelLoadError(f"{path}: {error}") from error
        self.is_multilingual = bool(self.native.model.is_multilingual)


def _n_cores() -> int:
    return psutil.cpu_count(logical=False) or os.cpu_count() or 1
