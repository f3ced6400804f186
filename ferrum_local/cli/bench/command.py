"""The flags of ``ferrum-local bench``, which models it takes, and its table."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ferrum_local.cli.found_models import CHAT, EMBEDDING, SPEECH, TRANSCRIPTION
from ferrum_local.cli.server_address import server_options

if TYPE_CHECKING:
    from ferrum_local.cli.bench.measures import Measurement
    from ferrum_local.cli.bench.targets import Target

# A voice comes before the model that transcribes what it said.
KINDS = (CHAT, EMBEDDING, SPEECH, TRANSCRIPTION)
_NO_SOUND = "no voice to speak what it would hear: give a recording with --audio"


def measure_all(
    open_target: dict[str, Callable[[], AbstractContextManager[Target]]], recording: bytes | None
) -> Iterator[Measurement]:
    """All measurements of one model of each kind, with one model in memory at a time.

    :param open_target: by kind.
    :param recording: speech to transcribe; None: what the voice says.
    """
    from ferrum_local.cli.bench import measures

    for kind in KINDS:
        if kind not in open_target:
            continue
        if kind == TRANSCRIPTION and recording is None:
            yield measures.Measurement(what=kind, model="", value=None, unit="RTF", note=_NO_SOUND)
            continue
        with open_target[kind]() as target:
            if kind == CHAT:
                yield from measures.measure_chat(target)
            elif kind == EMBEDDING:
                yield from measures.measure_embedding(target)
            elif kind == SPEECH:
                found, spoken = measures.measure_speech(target)
                yield from found
                recording = recording or spoken
            elif recording is not None:
                yield from measures.measure_transcription(target, recording)


def _engine_targets(
    wanted: tuple[str, ...],
) -> dict[str, Callable[[], AbstractContextManager[Target]]]:
    import functools

    import msgspec

    from ferrum_local.cli.bench.targets import EngineTarget
    from ferrum_local.cli.found_models import find_models, model_at
    from ferrum_local.cli.serve import llm_options
    from ferrum_local.config import ConfigError, resolve
    from ferrum_local.errors import ModelLoadError

    resolved = resolve({}, os.environ, cwd=Path.cwd())
    options = msgspec.structs.replace(llm_options(resolved.settings), slots=1)
    models = find_models(resolved, os.environ)
    if wanted:
        models = tuple(model_at(argument, models) for argument in wanted)
        for model in models:
            if model.problem is not None:
                raise ModelLoadError(model.problem)
    found: dict[str, Callable[[], AbstractContextManager[Target]]] = {}
    for model in models:
        if model.problem is None:
            found.setdefault(model.kind, functools.partial(EngineTarget, model, options))
    if not found:
        raise ConfigError(
            "there is no model to measure: fetch the starter models with "
            "`ferrum-local models pull`, or give one with --model PATH"
        )
    return found


@contextmanager
def _as_it_is(target: Target) -> Iterator[Target]:
    """A server's model needs no opening."""
    yield target


def _server_targets(
    url: str, api_key: str | None
) -> dict[str, Callable[[], AbstractContextManager[Target]]]:
    import functools

    from ferrum_local.cli.bench.targets import ServerTarget
    from ferrum_local.cli.ps import look_at
    from ferrum_local.cli.server_address import connect

    client = connect(url, api_key)
    found: dict[str, Callable[[], AbstractContextManager[Target]]] = {}
    for model in look_at(client).models:
        target = ServerTarget(client, model.id)
        found.setdefault(model.kind, functools.partial(_as_it_is, target))
    return found


@click.command(name="bench", short_help="Measure how fast this machine is.")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    help="Measure this model, by name or path; as often as you like.  [first of each kind]",
)
@server_options("A running server to measure, instead of loading models here.")
@click.option("--audio", metavar="FILE", help="Speech to transcribe.  [what the voice says]")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def bench_command(
    models: tuple[str, ...],
    url: str | None,
    api_key: str | None,
    audio: str | None,
    as_json: bool,
) -> int:
    """Measure one model of each kind in about half a minute, loading aside.

    RTF is the real-time factor: seconds of work for a second of sound, so less is faster.
    """
    import msgspec

    if url is not None and models:
        raise click.UsageError("--model and --url exclude each other.")
    targets = _engine_targets(models) if url is None else _server_targets(url, api_key)
    found: list[Measurement] = []
    for measurement in measure_all(targets, _read(audio)):
        found.append(measurement)
        if sys.stderr is not None and sys.stderr.isatty():
            click.echo(f"{measurement.what}: {_number(measurement.value)}", err=True)
    if as_json:
        click.echo(msgspec.json.encode({"measurements": found}).decode())
    else:
        _show(found)
    return 0


def _read(audio: str | None) -> bytes | None:
    if audio is None:
        return None
    try:
        return Path(audio).read_bytes()
    except OSError as error:
        raise click.UsageError(f"--audio {audio}: cannot be read ({error.strerror}).") from None


def _number(value: float | None) -> str:
    """With three digits that count."""
    if value is None:
        return "not measured"
    n_decimals = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{n_decimals}f}"


def _show(found: list[Measurement]) -> None:
    from ferrum_local.cli.tables import print_table

    rows = [
        (m.what, m.model, _number(m.value), m.unit if m.value is not None else "", m.note or "")
        for m in found
    ]
    print_table(("", "model", "value", "unit", "of"), rows)
