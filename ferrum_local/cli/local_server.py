"""A whole server for one command, in its own process and for nobody else."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ferrum_local.errors import ModelNotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrum_local.config.resolve import FlagValue


class LocalServer(NamedTuple):
    url: str
    api_key: str


@contextmanager
def talking_server(flags: Mapping[str, FlagValue]) -> Iterator[LocalServer]:
    """Models as ``serve`` would choose them; ready when the block begins.

    :param flags: of ``serve``, by field; empty ones are left out.
    :raises FerrumError: there is no chat model, Whisper model or voice, or one cannot be used.
    """
    from ferrum_local.cli.serve import check_models, make_serve_config
    from ferrum_local.config import check_speech_files, choose_models, choose_speech, resolve

    given = {name: value for name, value in flags.items() if value}
    resolved = resolve(given, os.environ, cwd=Path.cwd())
    models = choose_models(resolved, os.environ)
    audio = choose_speech(resolved, os.environ, with_starters=True)
    chat = tuple(model for model in models if model.kind == "chat")[:1]
    for found, what, flag in (
        (chat, "chat model", "--model PATH"),
        (audio.whisper_models, "Whisper model", "--whisper-model DIR"),
        (audio.voices, "voice", "--voice PATH"),
    ):
        if not found:
            raise ModelNotFound(
                f"There is no {what}. Fetch the starter models with `ferrum-local models pull`, "
                f"give one with {flag}, or talk to a running server with --url."
            )
    check_models(chat)
    check_speech_files(audio)
    config = make_serve_config(resolved, chat, audio)

    from ferrum_local.http.config import HttpConfig
    from ferrum_local.server.http_server import HttpServer

    if sys.stderr.isatty():
        print(f"Loading {chat[0].id} …", file=sys.stderr)
    api_key = secrets.token_urlsafe()
    server = HttpServer.from_models(
        *chat, options=config.llm, audio=audio, config=HttpConfig(api_keys=(api_key,))
    )
    with server:
        server.wait_ready()
        assert server.url is not None
        yield LocalServer(server.url, api_key)
