"""The flags of ``ferrum-local chat``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ferrum_local.cli.server_address import server_options

if TYPE_CHECKING:
    from ferrum_local.cli.chat.answers import Answers, SamplingWishes

STDIN = "-"


@click.command(name="chat", short_help="Talk with a model in the terminal.")
@click.argument("question", required=False)
@click.option(
    "--model",
    metavar="MODEL",
    help="Name or GGUF file, or with --url a model of the server.  [the starter, or the first]",
)
@server_options("A running server to ask, instead of loading a model here.")
@click.option("--system", metavar="TEXT", help="What the model is told first.")
@click.option(
    "--temperature", type=click.FloatRange(0, 2), help="0: always the likeliest word.  [1]"
)
@click.option("--max-tokens", type=click.IntRange(1), help="Longest answer.  [no limit]")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Same seed, same answer.")
@click.option("--ctx-size", metavar="TOKENS", help="Tokens of the whole conversation.  [auto]")
@click.option("--plain", is_flag=True, help="No Markdown: the text as the model writes it.")
def chat_command(
    question: str | None,
    model: str | None,
    url: str | None,
    api_key: str | None,
    system: str | None,
    temperature: float | None,
    max_tokens: int | None,
    seed: int | None,
    ctx_size: str | None,
    plain: bool,
) -> int:
    """Answer QUESTION, or without one hold a conversation; - reads the question from stdin.

    The model is loaded into this process, or asked for at a running server with --url.

    \b
    Examples:
      ferrum-local chat
      ferrum-local chat "Name three rivers." --max-tokens 60
      ferrum-local chat - --url http://127.0.0.1:8000 < letter.txt
    """
    from ferrum_local.cli.chat.answers import SamplingWishes
    from ferrum_local.cli.chat.conversation import Conversation
    from ferrum_local.cli.chat.session import ChatSession

    question = _question(question)
    wishes = SamplingWishes(temperature=temperature, max_tokens=max_tokens, seed=seed)
    if url is not None and ctx_size is not None:
        raise click.UsageError("--ctx-size is the server's to choose; leave it out with --url.")
    if url is None:
        answers = _engine_answers(model, ctx_size, wishes)
    else:
        answers = _server_answers(model, url, api_key, wishes)
    try:
        session = ChatSession(answers, Conversation(system), markdown=not plain)
        if question is not None:
            session.ask(question)
        else:
            session.run()
    finally:
        answers.close()
    return 0


def _question(argument: str | None) -> str | None:
    """None: a conversation."""
    if argument is None and sys.stdin is not None and sys.stdin.isatty():
        return None
    text = argument
    if argument is None or argument == STDIN:
        text = sys.stdin.read() if sys.stdin is not None else ""
    if not text or not text.strip():
        raise click.UsageError("There is no question.")
    return text


def _engine_answers(model: str | None, ctx_size: str | None, wishes: SamplingWishes) -> Answers:
    import msgspec

    from ferrum_local.cli.chat.answers import EngineAnswers
    from ferrum_local.cli.found_models import CHAT, find_models, model_at
    from ferrum_local.cli.serve import llm_options
    from ferrum_local.config import ConfigError, resolve

    resolved = resolve({"ctx_size": ctx_size}, os.environ, cwd=Path.cwd())
    known = [m for m in find_models(resolved, os.environ) if m.kind == CHAT]
    if model is None:
        chosen = next((m for m in known if m.problem is None), None)
        if chosen is None:
            raise ConfigError(
                "no model: fetch the starter models with `ferrum-local models pull`, or give a "
                "file with --model PATH, or a running server with --url"
            )
    else:
        chosen = model_at(model, tuple(known))
    others = [m for m in known if m.problem is None and m.spec.id != chosen.spec.id]
    # One conversation, and nobody else to answer meanwhile.
    options = msgspec.structs.replace(llm_options(resolved.settings), slots=1)
    return EngineAnswers([chosen, *others], options, wishes)


def _server_answers(
    model: str | None, url: str, api_key: str | None, wishes: SamplingWishes
) -> Answers:
    from ferrum_local.cli.chat.answers import ServerAnswers
    from ferrum_local.cli.server_address import connect

    return ServerAnswers(connect(url, api_key), wishes, model=model)
