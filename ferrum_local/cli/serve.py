"""``ferrum-local serve``: settle the settings, check the model files, start the server.

Everything that can be found wrong is found here, in milliseconds, before the
server and the native libraries are imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ferrum_local.cli.completion import complete_paths
from ferrum_local.config.options import CONFIG_ENV, GROUPS, OPTIONS, Option
from ferrum_local.config.show import default_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrum_local.audio_types import AudioConfig
    from ferrum_local.config import Resolved, Settings
    from ferrum_local.config.resolve import FlagValue
    from ferrum_local.server.config import ServeConfig
    from ferrum_local.types import LibraryOptions, LlmOptions, ModelSpec

# More slots than the engine takes by itself, and room for streams whose clients read slowly.
MOST_DEFAULT_SLOTS = 8
SPARE_STREAMS = 8

EPILOG = """\
Examples:
  ferrum-local serve
  ferrum-local serve --model qwen3-4b.gguf --port 9000
  ferrum-local serve --model small=a.gguf --model big=b.gguf --alias gpt-4o=big
  FERRUM_API_KEY=secret ferrum-local serve --host 0.0.0.0
  ferrum-local serve --print-config

Every option can also be a variable (--ctx-size is FERRUM_CTX_SIZE) or a line in
ferrum.toml (ctx_size = 4096). A flag wins over a variable, a variable over the file.
"""


class _GroupedCommand(click.Command):
    """A command whose help lists the options by the groups of the option table."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        group_of = {option.field: option.group for option in OPTIONS}
        rows: dict[str, list[tuple[str, str]]] = {group: [] for group in (*GROUPS, "Other")}
        for parameter in self.get_params(context):
            row = parameter.get_help_record(context)
            if row is not None:
                rows[group_of.get(parameter.name or "", "Other")].append(row)
        for group, group_rows in rows.items():
            with formatter.section(group):
                formatter.write_dl(group_rows, col_max=28)

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        # Click would indent the epilog and re-wrap it; it is laid out already.
        formatter.write("\n" + EPILOG)


def _click_option(option: Option) -> click.Option:
    """The flag of an option. Click only splits the line: values are parsed in one place, later."""
    default = default_text(option)
    help = f"{option.help}  [{default}]" if default else option.help
    if not option.kind.metavar:
        return click.Option(
            [f"{option.flag}/--no-{option.name}", option.field], default=None, help=help
        )
    return click.Option(
        [option.flag, option.field],
        type=str,
        metavar=option.kind.metavar,
        multiple=option.many,
        default=None,
        help=help,
        shell_complete=complete_paths if option.path else None,
    )


def _serve(config: str | None, print_config: bool, **flags: FlagValue) -> int:
    return run(flags, os.environ, config=config, show=print_config)


serve_command = _GroupedCommand(
    name="serve",
    callback=_serve,
    help="Serve models over HTTP, as OpenAI's API does.",
    short_help="Serve models over HTTP.",
    epilog=EPILOG,
    params=[
        *(_click_option(option) for option in OPTIONS),
        click.Option(
            ["--config"],
            type=str,
            metavar="PATH",
            help=f"Configuration file ({CONFIG_ENV}).  [./ferrum.toml, then the user's]",
        ),
        click.Option(
            ["--print-config"],
            is_flag=True,
            help="Show every option, its value and where it came from; do not serve.",
        ),
    ],
)


def run(
    flags: Mapping[str, FlagValue],
    env: Mapping[str, str],
    *,
    config: str | None = None,
    show: bool = False,
    start: Callable[[ServeConfig], int] | None = None,
) -> int:
    """Do what ``ferrum-local serve`` does, and return its exit code.

    :param start: runs the server; None: :func:`ferrum_local.server.serve`.
    :raises FerrumError: for settings, model files or an address that cannot be used.
    """
    from ferrum_local.config import (
        check_speech_files,
        choose_library,
        choose_models,
        choose_speech,
        resolve,
    )
    from ferrum_local.errors import FerrumError
    from ferrum_local.types import ModelSpec

    resolved = resolve(flags, env, cwd=Path.cwd(), config=config)
    if show:
        _show(resolved, env)
        return 0
    for note in resolved.notes:
        print(f"Note: {note}", file=sys.stderr)
    try:
        models = choose_models(resolved, env)
        check_models(models)
        audio = choose_speech(resolved, env)
        check_speech_files(audio)
        if resolved.settings.draft_model is not None:
            check_models((ModelSpec(id="draft", path=resolved.settings.draft_model),))
        library = choose_library(resolved, env)
        serve_config = make_serve_config(resolved, models, audio, library, env)
    except FerrumError as error:
        from ferrum_local.server.announce import tell_refused

        tell_refused(resolved.settings.announce, resolved.settings.events_fd, error)
        raise
    if start is None:
        from ferrum_local.server import serve

        return serve(serve_config)
    return start(serve_config)


def check_models(models: tuple[ModelSpec, ...]) -> None:
    """Look at each file's header, or at what is in its directory.

    :raises ModelLoadError: for the first file that is missing, wrong or damaged.
    """
    from ferrum_local.errors import ModelLoadError
    from ferrum_local.llm.gguf_header import (
        check_adapter_file,
        check_model_file,
        check_projector_file,
    )
    from ferrum_local.vision.layout import find_clip_files

    for model in models:
        if model.kind == "image-embedding":
            find_clip_files(model.path)
            continue
        header = check_model_file(model.path)
        if model.mmproj is not None:
            check_projector_file(model.mmproj)
        if model.kind == "chat" and header.makes_vectors_only:
            raise ModelLoadError(
                f"{model.path}: is a model for embeddings and writes no text; load it with "
                "--embedding-model"
            )
        for lora in model.loras:
            check_adapter_file(lora.path)


def make_serve_config(
    resolved: Resolved,
    models: tuple[ModelSpec, ...],
    audio: AudioConfig,
    library: LibraryOptions | None = None,
    env: Mapping[str, str] = os.environ,
) -> ServeConfig:
    """The settings in the form that the server layer takes them.

    :raises ConfigError: settings of access that cannot be used.
    """
    from ferrum_local.config.access import check_access, instance_dir
    from ferrum_local.http.config import MIB, HttpConfig, RealtimeLimits
    from ferrum_local.server.config import ServeConfig
    from ferrum_local.types import LibraryOptions

    check_access(resolved)
    settings = resolved.settings
    return ServeConfig(
        host=settings.host.strip("[]"),
        port=_port(resolved),
        socket=settings.socket,
        models=models,
        audio=audio,
        library=library or LibraryOptions(),
        llm=llm_options(settings),
        http=HttpConfig(
            api_keys=settings.api_key,
            api_key_file=settings.api_key_file and os.path.abspath(settings.api_key_file),
            cors_origins=tuple(origin.rstrip("/") for origin in settings.cors_origin),
            allowed_hosts=settings.allowed_host,
            bound_host=settings.host.strip("[]"),
            max_body_bytes=settings.max_body_mb * MIB,
            max_upload_bytes=settings.max_upload_mb * MIB,
            keep_alive_s=settings.keep_alive_interval_s,
            request_timeout_s=settings.request_timeout_s,
            any_model_name=settings.any_model_name,
            max_streams=_max_streams(settings),
            allow_local_files=settings.allow_local_files,
            media_dir=settings.media_dir and os.path.abspath(settings.media_dir),
            allow_remote_media=settings.allow_remote_media,
            log_content=settings.log_content,
            debug=settings.debug,
            realtime=RealtimeLimits(
                max_sessions=settings.realtime_sessions,
                idle_timeout_s=settings.realtime_idle_timeout_s,
                max_audio_s=settings.realtime_max_turn_s,
            ),
        ),
        drain_timeout_s=settings.drain_timeout_s,
        announce=settings.announce,
        events_fd=settings.events_fd,
        ready_file=settings.ready_file,
        token_file=settings.token_file,
        insecure=settings.insecure,
        offline=settings.offline,
        instance_dir=instance_dir(resolved, env),
        exit_with_parent=settings.exit_with_parent,
        exit_on_stdin_close=settings.exit_on_stdin_close,
        log_format=settings.log_format,
        log_level=settings.log_level,
    )


def llm_options(settings: Settings) -> LlmOptions:
    """What the settings say of chat and embedding models."""
    from ferrum_local.types import LlmOptions

    return LlmOptions(
        ctx_size=settings.ctx_size,
        slots=settings.slots,
        threads=settings.threads,
        threads_batch=settings.threads_batch,
        gpu_layers=settings.gpu_layers,
        flash_attn=settings.flash_attn,
        kv_type=settings.kv_type,
        max_queue=settings.max_queue,
        speculate=settings.speculate,
        draft_model=settings.draft_model,
        prompt_cache_mb=settings.prompt_cache_mb,
        prompt_cache_dir=settings.prompt_cache_dir,
        force=settings.force,
        embedding_ctx_size=settings.embedding_ctx_size,
        embedding_pooling=settings.embedding_pooling,
        embedding_prefix=settings.embedding_prefix,
        embeddings_from_chat=settings.embeddings_from_chat,
    )


def _port(resolved: Resolved) -> int | None:
    """None: a socket alone. A port or host that was asked for is served beside it."""
    is_default = all(resolved.sources[name].kind == "default" for name in ("host", "port"))
    return None if resolved.settings.socket is not None and is_default else resolved.settings.port


def _max_streams(settings: Settings) -> int:
    """Places for generations: a full queue must be told as such (429) before they run out."""
    from ferrum_local.http.config import DEFAULT_MAX_STREAMS

    slots = settings.slots or MOST_DEFAULT_SLOTS
    return max(DEFAULT_MAX_STREAMS, slots + settings.max_queue + SPARE_STREAMS)


def _show(resolved: Resolved, env: Mapping[str, str]) -> None:
    from ferrum_local.config import (
        check_speech_files,
        choose_library,
        choose_models,
        choose_speech,
    )
    from ferrum_local.config.access import check_access
    from ferrum_local.config.show import print_config
    from ferrum_local.errors import FerrumError

    click.echo(f"# configuration file: {resolved.config_file or 'none'}")
    click.echo(print_config(resolved))
    try:
        models = choose_models(resolved, env)
        audio = choose_speech(resolved, env)
        for model in (*models, *audio.whisper_models, *audio.voices):
            also = f" (also {', '.join(model.aliases)})" if model.aliases else ""
            click.echo(f"# serves {model.id}{also}: {model.path}")
        for directory in choose_library(resolved, env).directories:
            click.echo(f"# offers what is in {directory}")
        check_models(models)
        check_speech_files(audio)
        check_access(resolved)
    except FerrumError as error:
        click.echo(f"# cannot serve: {error.message}")
    for note in resolved.notes:
        click.echo(f"# note: {note}")
