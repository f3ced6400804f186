"""``ferrum-local chat`` with a real model: in a terminal, in a pipe, and with a server."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ferrum_local.cli.chat.answers import SamplingWishes, ServerAnswers
from ferrum_local.cli.client import ServerClient
from ferrum_local.errors import ModelNotFound
from tests.cli.terminal import CTRL_C, CTRL_D, Terminal, run, standing_in
from tests.conftest import SMOLLM2, RunningServer
from tests.contract.live import load, wait_idle
from tests.engine.tiny_models import write_llama
from tests.fakes import wait_until

pytestmark = pytest.mark.skipif(not SMOLLM2.is_file(), reason="starter model not fetched")
needs_terminal = pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
MODEL = ("--model", str(SMOLLM2), "--ctx-size", "512")
STORY = "Write a long story about a river."


@needs_terminal
def test_cli_05_a_conversation_in_a_terminal(tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf")
    env = {"FERRUM_MODELS_DIR": str(tmp_path)}
    with Terminal("chat", *MODEL, "--temperature", "0", cwd=tmp_path, env=env) as terminal:
        terminal.read_until("/help lists the commands")
        terminal.read_until(">>> ")

        terminal.line("/system You are brief.")
        terminal.read_until("System: You are brief.")
        terminal.line("/model")
        terminal.read_until(f"* {SMOLLM2.stem}")
        terminal.line("/nonsense")
        terminal.read_until("There is no command /nonsense")

        terminal.line('"""Hello!')
        terminal.read_until("... ")
        terminal.line('How are you?"""')
        answer = terminal.read_until(">>> ")
        assert answer.partition('you?"""')[2].strip()

        terminal.line("/system You write stories.")
        terminal.read_until(">>> ")
        terminal.line(STORY)
        terminal.read_until("river.\n")
        began = terminal.read_word()
        terminal.type(CTRL_C)
        terminal.read_until("(stopped)")
        terminal.read_until(">>> ")

        terminal.line("/save talk.json")
        terminal.read_until("Saved to talk.json.")
        terminal.line("/save talk.json")
        terminal.read_until("is there already")
        terminal.line("/model tiny")
        terminal.read_until("* tiny")
        terminal.line("/model none")
        terminal.read_until(f"no model 'none'. Known: {SMOLLM2.stem}, tiny.")
        terminal.line("/reset")
        terminal.read_until("begins anew")
        terminal.read_until(">>> ")
        terminal.type(CTRL_C)
        terminal.read_until("Ctrl-C once more leaves")
        terminal.read_until(">>> ")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.seen

    messages = json.loads((tmp_path / "talk.json").read_text("utf-8"))
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[1]["content"] == "Hello!\nHow are you?"
    assert messages[4]["content"].lstrip().startswith(began)


@needs_terminal
def test_ctrl_d_leaves_a_conversation_with_a_server(server: RunningServer, tmp_path: Path) -> None:
    with Terminal("chat", "--url", server.url, cwd=tmp_path) as terminal:
        terminal.read_until(f"{server.model} answers.")
        terminal.read_until(">>> ")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0


@needs_terminal
def test_cli_05_ctrl_c_ends_a_single_question_with_130(
    server: RunningServer, tmp_path: Path
) -> None:
    with Terminal("chat", STORY, "--url", server.url, cwd=tmp_path) as terminal:
        wait_until(lambda: load(server).running == 1, 60.0)
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.seen
    wait_idle(server)


@needs_terminal
def test_cli_05_ctrl_c_does_not_wait_for_a_load(tmp_path: Path) -> None:
    env = standing_in(tmp_path, "llama_cpp", "print('loading', flush=True); time.sleep(600)")
    with Terminal("chat", "hi", *MODEL, cwd=tmp_path, env=env) as terminal:
        terminal.read_until("loading")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.seen


def test_a_question_is_answered_alike_here_and_by_a_server(
    server: RunningServer, tmp_path: Path
) -> None:
    here = run("chat", "Hi", *MODEL, "--temperature", "0", "--max-tokens", "12", cwd=tmp_path)
    there = run(
        "chat", "-", "--url", f"{server.url}/v1", "--temperature", "0", "--max-tokens", "12",
        stdin="Hi", cwd=tmp_path,
    )  # fmt: skip
    assert (here.returncode, there.returncode) == (0, 0), here.stderr + there.stderr
    assert here.stdout == there.stdout
    assert "ello" in here.stdout and here.stdout.endswith("\n")
    assert "\x1b" not in here.stdout


def test_an_answer_that_is_left_is_cancelled_at_the_server(server: RunningServer) -> None:
    answers = ServerAnswers(ServerClient(server.url), SamplingWishes())
    before = wait_idle(server).cancelled
    pieces = answers.answer([{"role": "user", "content": STORY}])
    assert next(piece for piece in pieces if piece.text)
    pieces.close()
    assert wait_idle(server).cancelled == before + 1


def test_models_of_a_server_are_known_by_id_and_alias(server: RunningServer) -> None:
    answers = ServerAnswers(ServerClient(server.url), SamplingWishes(), model="smol")
    assert answers.model == server.model
    with pytest.raises(ModelNotFound, match=f"no model 'x'. Known: {server.model}"):
        answers.use("x")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["hi", "--url", "http://127.0.0.1:9"], 1, "Nothing listens at http://127.0.0.1:9"),
        (["hi", "--url", "ftp://x"], 2, "expected http://HOST:PORT"),
        (["hi", "--model", "none.gguf"], 2, "no such file"),
        (["hi", "--url", "http://127.0.0.1:9", "--ctx-size", "9"], 2, "leave it out with --url"),
        (["hi", "--ctx-size", "x", "--model", "y"], 2, "--ctx-size: expected"),
        ([" "], 2, "There is no question."),
        ([], 2, "There is no question."),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    arguments: list[str], code: int, said: str, tmp_path: Path
) -> None:
    done = run("chat", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
