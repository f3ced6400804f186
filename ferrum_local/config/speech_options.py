"""The options of speech: part of the table in ``options``."""

from __future__ import annotations

from ferrum_local.config.option import Option
from ferrum_local.config.values import Duration, Integer, Text

SPEECH_OPTIONS: tuple[Option, ...] = (
    Option(
        name="whisper-model",
        field="whisper_model",
        group="Speech",
        kind=Text(metavar="[NAME=]DIR", expected="a directory, or NAME=DIR"),
        default=(),
        many=True,
        path=True,
        help="Whisper model to transcribe with, a CTranslate2 directory.",
    ),
    Option(
        name="voice",
        field="voice",
        group="Speech",
        kind=Text(metavar="[NAME=]PATH", expected="a path, or NAME=PATH"),
        default=(),
        many=True,
        path=True,
        help="Piper voice to speak with, an .onnx file with its .onnx.json beside it.",
    ),
    Option(
        name="voice-name",
        field="voice_name",
        group="Speech",
        kind=Text(metavar="NAME=VOICE", expected="NAME=VOICE, like alloy=joe", pattern=r"[^=]+=.+"),
        default=(),
        many=True,
        help="What else a voice is called; OpenAI's names mean the first voice otherwise.",
    ),
    Option(
        name="stt-threads",
        field="stt_threads",
        group="Speech",
        kind=Integer(1, 1024, none_word="auto"),
        default=None,
        help="CPU threads of one transcription; auto: half of the cores.",
    ),
    Option(
        name="stt-workers",
        field="stt_workers",
        group="Speech",
        kind=Integer(1, 64, none_word="auto"),
        default=None,
        help="Transcriptions at the same time; auto: two, or one on a single core.",
    ),
    Option(
        name="tts-threads",
        field="tts_threads",
        group="Speech",
        kind=Integer(1, 1024, none_word="auto"),
        default=None,
        help="CPU threads for one clause of speech; auto: all cores, up to four.",
    ),
    Option(
        name="max-upload-mb",
        field="max_upload_mb",
        group="Speech",
        kind=Integer(1, 1_048_576),
        default=1024,
        help="Largest recording that may be sent, in MiB.",
    ),
    Option(
        name="max-audio-length",
        field="max_audio_s",
        group="Speech",
        kind=Duration(minimum_s=1.0),
        default=14_400.0,
        help="Longest recording that is transcribed, like 90m or 4h.",
    ),
)
