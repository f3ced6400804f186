"""``ferrum-local transcribe``: recordings to text and subtitles, beside the recordings."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ferrum_local.errors import FerrumError, InvalidRequest
from ferrum_local.whole_files import replacing

if TYPE_CHECKING:
    from ferrum_local.audio_types import TranscribedSegment
    from ferrum_local.engine.facade import LocalEngine

EXIT_SOME_FAILED = 1
BAR_CHARS = 24


def run(
    files: tuple[str, ...],
    *,
    format_: str,
    language: str | None,
    translate: bool,
    words: bool,
    force: bool,
    whisper_model: str | None,
) -> int:
    """Write one file beside each recording; what is there already is left.

    A recording that cannot be read is told, and the others go on.

    :returns: the exit code; 1 if any recording failed.
    """
    from ferrum_local.cli.speech_engine import speech_engine
    from ferrum_local.languages import wanted_language

    if words and format_ == "txt":
        raise click.UsageError("--words needs --format json, srt or vtt.")
    if translate and language is not None:
        raise click.UsageError("--translate finds the language out; --language cannot be given.")
    code = wanted_language(language)
    work = [(Path(name), Path(name).with_suffix(f".{format_}")) for name in files]
    for i, (source, target) in enumerate(work):
        if source == target:
            raise click.UsageError(f"{source}: is itself a .{format_} file.")
        if target in [other for _, other in work[:i]]:
            raise click.UsageError(f"{source}: another file would be written to {target} too.")
    left = [(source, target) for source, target in work if force or not _is_done(source, target)]
    for source, target in work:
        if (source, target) not in left:
            click.echo(f"{target} is there already (--force writes it again)", err=True)
    if not left:
        return 0
    n_failed = 0
    with speech_engine("transcription", whisper_model) as engine:
        for source, target in left:
            try:
                _write(engine, source, target, format_, code, translate=translate, words=words)
            except (FerrumError, OSError) as error:
                n_failed += 1
                _clear_line()
                text = error.message if isinstance(error, FerrumError) else error.strerror
                click.echo(f"Error: {source}: {str(text).removeprefix('file: ')}", err=True)
    return EXIT_SOME_FAILED if n_failed else 0


def _is_done(source: Path, target: Path) -> bool:
    """Written after the recording was; files appear whole or not at all."""
    try:
        return target.stat().st_mtime >= source.stat().st_mtime
    except OSError:
        return False


def _write(
    engine: LocalEngine,
    source: Path,
    target: Path,
    format_: str,
    language: str | None,
    *,
    translate: bool,
    words: bool,
) -> None:
    from ferrum_local.audio.decode import declared_duration_s
    from ferrum_local.audio_types import TranscriptionRequest

    started_s = time.monotonic()
    segments: list[TranscribedSegment] = []
    with source.open("rb") as file:
        total_s = declared_duration_s(file)
        stream = engine.transcribe(
            TranscriptionRequest(
                id=str(source),
                model_id="",
                file=file,
                task="translate" if translate else "transcribe",
                language=language,
                word_timestamps=words,
                early=sys.stderr.isatty(),
            )
        )
        try:
            for segment in stream:
                segments.append(segment)
                _show(source.name, segment.end, total_s, time.monotonic() - started_s)
        finally:
            stream.close()
        facts = stream.facts
    text = _formatted(format_, segments, words=words, to_json=lambda: _json(
        segments, facts, translate=translate, words=words
    ))  # fmt: skip
    with replacing(target, make_dirs=False) as whole:
        whole.write(text.encode())
    took_s = time.monotonic() - started_s
    _clear_line()
    speed = facts.duration_s / took_s if took_s > 0 else 0.0
    click.echo(f"{target} ({facts.duration_s:.1f} s in {took_s:.1f} s, {speed:.1f}x)")


def _formatted(
    format_: str, segments: list[TranscribedSegment], *, words: bool, to_json: Callable[[], str]
) -> str:
    from ferrum_local.http.openai.subtitles import srt, vtt, word_cues

    if format_ == "json":
        return to_json()
    if format_ == "txt":
        return "".join(segment.text for segment in segments).strip() + "\n"
    cues = word_cues(segments) if words else segments
    return srt(cues) if format_ == "srt" else vtt(cues)


def _json(
    segments: list[TranscribedSegment], facts: object, *, translate: bool, words: bool
) -> str:
    import msgspec

    from ferrum_local.audio_types import TranscriptionFacts
    from ferrum_local.http.openai.transcription_bodies import verbose_transcription

    assert isinstance(facts, TranscriptionFacts)
    body = verbose_transcription(
        "translate" if translate else "transcribe",
        segments,
        facts,
        {"segment", "word"} if words else {"segment"},
    )
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"


def _show(name: str, done_s: float, total_s: float | None, took_s: float) -> None:
    if not sys.stderr.isatty():
        return
    speed = f"{done_s / took_s:.1f}x" if took_s > 0 else ""
    if total_s:
        share = min(1.0, done_s / total_s)
        bar = "#" * round(share * BAR_CHARS)
        line = f"{name}  [{bar:.<{BAR_CHARS}}] {share:4.0%}  {speed}"
    else:
        line = f"{name}  {done_s:.0f} s  {speed}"
    sys.stderr.write(f"\r\x1b[K{line}")
    sys.stderr.flush()


def _clear_line() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")


@click.command(name="transcribe", short_help="Write down what is said in recordings.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["txt", "srt", "vtt", "json"]),
    default="txt",
    show_default=True,
    help="What to write.",
)
@click.option("--language", metavar="LANGUAGE", help="Code or name, like de or german.  [detect]")
@click.option("--translate", is_flag=True, help="Write English, whatever is spoken.")
@click.option("--words", is_flag=True, help="Times of single words (json, srt, vtt).")
@click.option("--force", is_flag=True, help="Write again what is there already.")
@click.option("--whisper-model", metavar="DIR", help="The model to use.  [the starter model]")
def transcribe_command(
    files: tuple[str, ...],
    format_: str,
    language: str | None,
    translate: bool,
    words: bool,
    force: bool,
    whisper_model: str | None,
) -> int:
    """Write down what is said in audio or video files, beside each file.

    Files that were done before are skipped, so an interrupted batch goes on where it was.
    """
    try:
        return run(
            files,
            format_=format_,
            language=language,
            translate=translate,
            words=words,
            force=force,
            whisper_model=whisper_model,
        )
    except InvalidRequest as error:
        raise click.UsageError(error.message + ".") from error
