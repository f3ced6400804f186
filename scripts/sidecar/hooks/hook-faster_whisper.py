"""The network that finds speech (Silero VAD)."""

from PyInstaller.utils.hooks import collect_data_files

datas = collect_data_files("faster_whisper")
