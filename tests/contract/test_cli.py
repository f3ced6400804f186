"""The command as people run it: real processes, what they print, and how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from ferrum_local import __version__
from ferrum_local.cli.serve import run
from ferrum_local.errors import FerrumError
from ferrum_local.server.config import ServeConfig
from tests.engine.tiny_models import write_llama
from tests.fakes import wait_until

ROOT = Path(__file__).parents[2]
SMOLLM2 = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
HEAVY = ("flask", "werkzeug", "gunicorn", "numpy", "llama_cpp", "jinja2", "prometheus_client",
         "rich", "markdown_it", "psutil", "packaging")  # fmt: skip
START_TIMEOUT_S = 120

needs_model = pytest.mark.skipif(not SMOLLM2.is_file(), reason="starter model not fetched")


class Shell:
    """Runs ``python -m ferrum_local`` in an empty directory, without the user's own settings."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("FERRUM_")}
        return {
            **inherited,
            "PYTHONPATH": str(ROOT),
            "XDG_CONFIG_HOME": str(self.directory / "config"),
            "XDG_DATA_HOME": str(self.directory / "data"),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
            **(extra or {}),
        }

    def start(
        self, *arguments: str | bytes, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "ferrum_local", *arguments],
            cwd=self.directory,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def __call__(
        self, *arguments: str | bytes, env: Mapping[str, str] | None = None
    ) -> tuple[int, str, str]:
        """The exit code, stdout and stderr of a command that ends by itself."""
        process = self.start(*arguments, env=env)
        try:
            out, err = process.communicate(timeout=START_TIMEOUT_S)
        finally:
            process.kill()
        return process.returncode, out, err

    def refused(self, *arguments: str | bytes, env: Mapping[str, str] | None = None) -> str:
        """The one line with which ``serve`` refuses, with exit code 2."""
        code, out, err = self("serve", *arguments, env=env)
        assert (code, out) == (2, ""), err
        assert len(err.splitlines()) == 1 and err.startswith("Error: ")
        return err


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


# Help and version


def test_help_shows_every_group_and_an_example(shell: Shell) -> None:
    code, out, err = shell("serve", "--help")
    assert (code, err) == (0, "")
    for text in ("Models:", "Address:", "Limits:", "--model [NAME=]PATH", "Examples:", "[8000]"):
        assert text in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_no_command_shows_the_commands(shell: Shell) -> None:
    code, out, _ = shell()
    assert code == 0 and "serve" in out


def test_version(shell: Shell) -> None:
    assert shell("--version") == (0, f"ferrum-local {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["serve", "--help"],
        ["embed", "--help"],
        ["chat", "--help"],
        ["doctor", "--help"],
        ["serve", "--print-config"],
        ["service", "install", "--dry-run"],
    ],
)
def test_help_loads_nothing_heavy(shell: Shell, arguments: list[str]) -> None:
    script = f"""
import sys
from ferrum_local.cli import main
try:
    main({arguments!r})
finally:
    print("\\nloaded:", [name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=shell.directory,
        env=shell.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("loaded: []\n")


def test_a_reader_that_leaves_early_causes_no_traceback(shell: Shell) -> None:
    process = shell.start("serve", "--help")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=START_TIMEOUT_S) in (0, 1)
    assert process.stderr.read() == ""
    process.stderr.close()


# Settings


def test_precedence_across_a_real_command_line(shell: Shell) -> None:
    (shell.directory / "ferrum.toml").write_text("port = 1\nslots = 1\nmax_queue = 1\n")
    env = {"FERRUM_PORT": "2", "FERRUM_SLOTS": "2", "FERRUM_API_KEY": "hunter2"}

    code, out, err = shell("serve", "--print-config", "--port", "3", env=env)

    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["port", "=", "3", "#", "flag", "--port"] in lines
    assert ["slots", "=", "2", "#", "env", "FERRUM_SLOTS"] in lines
    assert ["max_queue", "=", "1", "#", "file", str(shell.directory / "ferrum.toml")] in lines
    assert ["drain_timeout", "=", "10", "#", "default"] in lines
    assert "hunter2" not in out


def test_print_config_says_what_is_missing_and_still_succeeds(shell: Shell) -> None:
    code, out, _ = shell("serve", "--print-config", "--model", "none.gguf")
    assert code == 0
    assert "# cannot serve: " in out and "none.gguf: no such file" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "x"], "--port: expected a whole number from 0 to 65535, got 'x'"),
        (["--port"], "requires an argument"),
        (["--prot", "1"], "--port"),
        (["extra"], "extra"),
        (["--config", "none.toml"], "--config: none.toml: no such file"),
        (["--models-dir", "."], "make setup"),
        (["--host", "a b"], "--host: expected a host name"),
    ],
)
def test_a_bad_command_line_is_one_line_and_exit_code_2(
    shell: Shell, arguments: list[str], said: str
) -> None:
    assert said in shell.refused(*arguments)


def test_a_bad_variable_or_file_is_one_line_and_exit_code_2(shell: Shell) -> None:
    assert "FERRUM_PORT: expected" in shell.refused(env={"FERRUM_PORT": "x"})
    (shell.directory / "ferrum.toml").write_text("prot = 1")
    assert "did you mean 'port'?" in shell.refused()


# Model files


def test_cli_03_a_missing_model_is_one_line_and_exit_code_2(shell: Shell) -> None:
    message = shell.refused("--model", "C:\\Users\\Željko Ž\\模型 dir\\m.gguf")
    assert "Željko Ž" in message and "no such file" in message


def test_cli_03_wrong_and_truncated_files_are_named(shell: Shell) -> None:
    (shell.directory / "page.gguf").write_text("<html>Sign in</html>")
    (shell.directory / "cut.gguf").write_bytes(b"GGUF\x03\0\0\0")
    assert "a web page" in shell.refused("--model", "page.gguf")
    assert "cut short" in shell.refused("--model", "m=cut.gguf")
    assert "is a directory" in shell.refused("--model", ".")


def test_life_06_a_path_that_the_terminal_cannot_show_is_still_one_line(shell: Shell) -> None:
    env = {"PYTHONIOENCODING": "ascii"}
    assert "🦙.gguf" in shell.refused("--model", "🦙.gguf", env=env)


def test_life_06_what_comes_through_a_pipe_is_utf_8(shell: Shell) -> None:
    script = "from ferrum_local.cli import _use_utf8; _use_utf8(); print(input())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**shell.environment(), "PYTHONIOENCODING": "ascii"},
        input="Grüße 🦙\n".encode(),
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode().strip() == "Grüße 🦙"


@pytest.mark.skipif(os.name != "posix", reason="file names are bytes on POSIX only")
def test_cli_03_a_path_that_is_not_utf_8_is_still_one_line(shell: Shell) -> None:
    assert "no such file" in shell.refused("--model", b"\xff\xfe.gguf")


@needs_model
def test_cli_03_spaces_quotes_tilde_and_other_scripts_are_found(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shell.directory / "Željko Ž" / "模型 dir"
    folder.mkdir(parents=True)
    (folder / "my model=1.gguf").symlink_to(SMOLLM2)
    home = {"HOME": str(shell.directory), "USERPROFILE": str(shell.directory)}
    served = f"# serves my-model-1: {folder / 'my model=1.gguf'}"

    path = "~/Željko Ž/模型 dir/my model=1.gguf"
    for arguments, env in (
        (["--model", path], home),
        ([], {**home, "FERRUM_MODEL": f'"{path}"'}),
    ):
        code, out, _ = shell("serve", "--print-config", *arguments, env=env)
        assert code == 0
        assert served in out and "cannot serve" not in out

    (shell.directory / "ferrum.toml").write_text(f"model = '\"{path}\"'", encoding="utf-8")
    code, out, _ = shell("serve", "--print-config", env=home)
    assert served in out and "cannot serve" not in out


# What the server is started with


@needs_model
def test_settings_reach_the_server_layer() -> None:
    seen: list[ServeConfig] = []

    def start(config: ServeConfig) -> int:
        seen.append(config)
        return 7

    flags = {
        "model": (f"small={SMOLLM2}",),
        "alias": ("gpt-4o=small",),
        "host": "localhost",
        "port": "0",
        "ctx_size": "4096",
        "gpu_layers": "auto",
        "kv_type": "q8_0",
        "flash_attn": "on",
        "api_key": ("k1", "k2"),
        "cors_origin": ("https://a.example/",),
        "max_body_mb": "1",
        "request_timeout_s": "2m",
        "drain_timeout_s": "3",
        "announce": "json",
    }
    assert run(flags, {}, config=os.devnull, start=start) == 7

    (config,) = seen
    assert (config.host, config.port, config.drain_timeout_s) == ("localhost", 0, 3.0)
    assert config.announce == "json"
    (model,) = config.models
    assert (model.id, model.path, model.aliases) == ("small", str(SMOLLM2), ("gpt-4o",))
    assert (config.llm.ctx_size, config.llm.gpu_layers) == (4096, None)
    assert (config.llm.kv_type, config.llm.flash_attn) == ("q8_0", "on")
    assert config.http.api_keys == ("k1", "k2")
    assert config.http.cors_origins == ("https://a.example",)
    assert config.http.max_body_bytes == 1024 * 1024
    assert config.http.request_timeout_s == 120.0


@needs_model
def test_a_failure_of_the_server_is_an_error_for_people() -> None:
    def start(config: ServeConfig) -> int:
        raise FerrumError(f"port {config.port} is in use on {config.host}")

    with pytest.raises(FerrumError, match="port 8000 is in use on 127.0.0.1"):
        run({"model": (str(SMOLLM2),)}, {}, config=os.devnull, start=start)


# With the real server


@pytest.fixture
def server(shell: Shell) -> Iterator[dict[str, object]]:
    """A real server on ``localhost`` and any port; what it announced."""
    process = shell.start(
        "serve", "--model", str(SMOLLM2), "--host", "localhost", "--port", "0",
        "--announce", "json", "--ctx-size", "512", "--slots", "1", "--log-level", "error",
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield json.loads(line)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=START_TIMEOUT_S)
        finally:
            process.kill()


@needs_model
def test_cli_01_a_second_server_on_the_port_ends_at_once(
    shell: Shell, server: dict[str, object]
) -> None:
    host, port = str(server["host"]), str(server["port"])

    code, out, err = shell("serve", "--model", str(SMOLLM2), "--host", host, "--port", port)

    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert host in err and port in err and "in use" in err


@needs_model
def test_cli_02_localhost_is_bound_and_announced_as_it_is(server: dict[str, object]) -> None:
    with socket.create_connection((str(server["host"]), int(str(server["port"]))), timeout=10):
        pass
    assert f":{server['port']}" in str(server["url"])


@needs_model
def test_cli_01_any_other_program_on_the_port_is_named_too(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        code, _, err = shell("serve", "--model", str(SMOLLM2), "--port", port)
    assert code == 1
    assert len(err.splitlines()) == 1 and "127.0.0.1" in err and port in err


@pytest.fixture
def library(shell: Shell) -> Iterator[tuple[str, Path]]:
    """A server that was told of no model, and a directory with one; its URL and the directory."""
    models = shell.directory / "models"
    models.mkdir()
    write_llama(models / "tiny.gguf")
    process = shell.start(
        "serve", "--port", "0", "--announce", "json", "--models-dir", str(shell.directory / "more"),
        "--ctx-size", "128", "--slots", "1", "--threads", "1", "--log-level", "error",
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        ready = json.loads(line)
        assert ready["models"] == []
        yield ready["url"], shell.directory / "more"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=START_TIMEOUT_S)
        finally:
            process.kill()
    assert process.returncode == 0


def test_models_of_the_directories_are_served_without_naming_any(
    library: tuple[str, Path],
) -> None:
    url, more = library
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    (model,) = client.models.list().data
    assert (model.id, (model.model_extra or {})["state"]) == ("tiny", "unloaded")
    messages: Any = [{"role": "user", "content": "Hello"}]
    answer = client.chat.completions.create(model="default", messages=messages, max_tokens=2)
    assert answer.model == "tiny"
    (more / "Ž 模型").mkdir(parents=True)
    write_llama(more / "Ž 模型" / "ü b.gguf")
    wait_until(lambda: len(client.models.list().data) == 2)
    answer = client.chat.completions.create(model="ü-b", messages=messages, max_tokens=2)
    assert answer.usage is not None and answer.usage.completion_tokens == 2


# Ctrl-C


@pytest.mark.skipif(os.name != "posix", reason="signals are sent as on POSIX")
def test_cli_05_ctrl_c_in_the_command_line_leaves_no_traceback(shell: Shell) -> None:
    # A pipe as configuration file keeps the command inside its own code.
    pipe = shell.directory / "pipe.toml"
    os.mkfifo(pipe)
    process = shell.start("serve", "--config", str(pipe), "--print-config")
    try:
        descriptor = _open_for_writing(pipe, process)
        # Python drops a KeyboardInterrupt that comes within a weakref's callback, as at the end
        # of an import: once it reads, nothing of that kind is left.
        reader = psutil.Process(process.pid)
        wait_until(lambda: reader.status() == psutil.STATUS_SLEEPING)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=START_TIMEOUT_S)
        os.close(descriptor)
    finally:
        process.kill()
    assert (process.returncode, err.strip()) == (130, "")


def _open_for_writing(pipe: Path, reader: subprocess.Popen[str]) -> int:
    while reader.poll() is None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            time.sleep(0.005)
    raise AssertionError(f"ended with {reader.returncode}")
