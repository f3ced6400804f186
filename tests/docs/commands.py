"""The commands of ``sh`` blocks: taken apart, and each checked as far as it can be without harm."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import native_build
from ferrum_local.registry.starter import CATALOG, load_catalog

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
VOICE = ROOT / "models" / "voices" / "en_US-joe-medium.onnx"
MINILM = ROOT / "models" / "all-minilm-l6-v2.f16.gguf"
EVERYDAY = ("chat", "ps", "doctor", "bench", "service", "completion")
ADDRESS = "http://127.0.0.1:8000"  # what the docs call; the tests put a free port there
PLACEHOLDER = "/path/to/"  # a file that the reader has and we have not
PREBUILT_INDEXES = re.compile(r"cpu|metal|cu12[1-5]")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_TIMEOUT_S = 120


class Command(NamedTuple):
    """``NAME=value`` in front are ``env``; ``raw`` is the text as it stands in the docs."""

    raw: str
    env: dict[str, str]
    words: list[str]

    @property
    def program(self) -> str:
        return Path(self.words[0]).name


def split_commands(text: str) -> Iterator[Command]:
    """One command a line; a line goes on after a backslash and inside quotes.

    :raises ValueError: an open quote, or something that is more than one plain command.
    """
    raw = ""
    for line in text.splitlines(keepends=True):
        raw += line
        try:
            words = _words(raw)
        except ValueError:
            continue  # within quotes: the next line belongs to it
        if not raw.rstrip("\n").endswith("\\"):
            yield from _command(raw, words)
            raw = ""
    if raw.strip():
        raise ValueError(f"not a whole command: {raw!r}")


def _words(raw: str) -> list[str]:
    lexer = shlex.shlex(raw.replace("\\\n", " "), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    return list(lexer)


def _command(raw: str, words: list[str]) -> Iterator[Command]:
    env: dict[str, str] = {}
    while words and (found := _ASSIGNMENT.fullmatch(words[0])):
        env[found[1]] = found[2]
        words = words[1:]
    for word in words:
        if re.fullmatch(r"[();<>|&]+", word):
            raise ValueError(f"{word!r} in {raw!r}: write one plain command a line")
    if words:
        yield Command(raw.strip(), env, words)


# -- checks, by program -----------------------------------------------------------------------


def check_curl(command: Command, url: str) -> None:
    """Run it, and look at the reply: no error, whole JSON, streams with their end."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    assert ADDRESS in command.raw, "every example calls the default address"
    script = (
        f'curl() {{ command curl --fail-with-body -sS --max-time {_TIMEOUT_S} "$@"; }}\n'
        + command.raw.replace(ADDRESS, url)
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if '"stream": true' not in command.raw:
        json.loads(done.stdout)
        return
    events = [line for line in done.stdout.splitlines() if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in events)
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in events[:-1]]
    assert chunks and not any("error" in chunk for chunk in chunks)


def check_everyday(command: Command, directory: Path, url: Callable[[], str]) -> None:
    """Run it on one small model or the server; what would wait for a person or touch the
    system is asked for its help instead."""
    name, *rest = command.words[1:]
    if (name == "chat" and not rest) or (name == "service" and "--dry-run" not in rest):
        rest.append("--help")
    elif ADDRESS in rest:
        rest = [url() if word == ADDRESS else word for word in rest]
    elif name == "ps":
        rest += ["--url", url()]
    elif name in ("doctor", "bench"):
        rest += ["--model", str(MINILM)]
    env = {"FERRUM_PORT": "0", **command.env}
    out = run_python(["-m", "ferrum_local", name, *rest], directory, env)
    assert out.strip()
    if "--json" in rest:
        json.loads(out)


def check_ferrum_local(command: Command, directory: Path, url: Callable[[], str]) -> None:
    """Run it, with ``--print-config`` instead of serving, in a directory without settings."""
    arguments = list(command.words[1:])
    if arguments in (["embed"], ["search"]):  # the name of the command in a sentence
        help_text = run_python(["-m", "ferrum_local", *arguments, "--help"], directory, {})
        assert help_text.strip()
        return
    if arguments[:1] == ["embed"]:  # in full: it ends by itself
        assert run_python(["-m", "ferrum_local", *arguments], directory, command.env).strip()
        return
    if arguments[:1] == ["search"]:
        notes = directory / "notes"
        notes.mkdir(exist_ok=True)
        (notes / "car.txt").write_text("We parked the car on level four.\n", "utf-8")
        (notes / "dinner.md").write_text("# Dinner\n\nTomato soup with basil.\n", "utf-8")
        found = run_python(["-m", "ferrum_local", *arguments], directory, command.env)
        assert str(Path("notes", "car.txt")) in found or "dinner.md" in found
        return
    if arguments[:1] == ["talk"] and "--wav" not in arguments:  # with a microphone
        arguments = ["talk", "--help"]
    if arguments[:1] in (["speak"], ["talk"], ["transcribe"]):
        if not VOICE.exists():
            pytest.skip("speech models are not here: run `make setup-test`")
        run_python(["-m", "ferrum_local", *arguments], directory, command.env)
        return
    if arguments[:1] and arguments[0] in EVERYDAY:
        check_everyday(command, directory, url)
        return
    if arguments[:1] == ["models"]:
        check_models(arguments, directory)
        return
    if arguments[:1] == ["serve"]:
        arguments.append("--print-config")
    else:
        assert arguments in (["--help"], ["--version"]), "only `serve` and help are known"
    out = run_python(["-m", "ferrum_local", *arguments], directory, command.env)
    for flag in (word for word in command.words if word.startswith("--")):
        assert flag in ("--print-config", "--help", "--version") or f"# flag {flag}" in out
    for variable in command.env:
        assert f"# env {variable}" in out
    if "# cannot serve" in out:
        assert PLACEHOLDER in command.raw, out


def check_models(arguments: list[str], directory: Path) -> None:
    """List the models; of what fetches or deletes some, see that the command knows the options."""
    if arguments[1:2] == ["list"]:
        run_python(["-m", "ferrum_local", *arguments], directory, {})
        return
    help_text = run_python(["-m", "ferrum_local", *arguments[:2], "--help"], directory, {})
    for flag in (word for word in arguments if word.startswith("--")):
        assert flag in help_text


def check_make(command: Command, directory: Path, url: Callable[[], str]) -> None:
    """Ask make whether it could; check the values that the set-up script would get."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    done = subprocess.run(
        ["make", "-n", *command.words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for word in command.words[1:]:
        name, _, value = word.partition("=")
        if name == "ARGS":
            serve = Command(command.raw, {}, ["ferrum-local", "serve", *shlex.split(value)])
            check_ferrum_local(serve, directory, url)
        elif name == "BACKEND":
            assert value in native_build.BACKENDS
        elif name == "PREBUILT":
            assert PREBUILT_INDEXES.fullmatch(value)
        else:
            assert name == "PYTHON" or "=" not in word, f"{name} is not a variable of the Makefile"


def check_pip(command: Command) -> None:
    """Only this project, or packages that it names itself."""
    assert command.words[1] in ("install", "download")
    options = (
        "--extra-index-url", "--no-cache-dir", "--force-reinstall", "--no-deps", "--no-binary",
    )  # fmt: skip
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    requirements = [*project["dependencies"], *(line for extra in extras for line in extra)]
    known = {".", *(re.split(r"[^\w.-]", line)[0] for line in requirements)}
    for word in command.words[2:]:
        name = word.partition("==")[0]
        assert name in known or word in options or word.startswith("https://"), word


def check_script(command: Command, directory: Path) -> None:
    """A script of ours: it is there, and knows the options and groups that it is given."""
    script, *arguments = [word.replace("\\", "/") for word in command.words[1:]]
    assert script.startswith("scripts/") and (ROOT / script).is_file()
    help_text = run_python([str(ROOT / script), "--help"], directory, {})
    for word in arguments:
        if word.startswith("--"):
            assert re.search(rf"{word}\b", help_text), f"{script} does not know {word}"
    if script.endswith("fetch_models.py"):
        catalog = load_catalog(CATALOG)
        groups = {word for word in arguments if not word.startswith("--")}
        assert groups <= {model.group for model in catalog}


def check_clone(command: Command) -> None:
    assert command.words[1] == "clone" and command.words[-1] == "ferrum-local"


def check_cd(command: Command) -> None:
    assert command.words[1:] == ["ferrum-local"], "the only directory that the reader has"


def checks(url: Callable[[], str], directory: Path) -> Mapping[str, Callable[[Command], None]]:
    """What to do about each program; ``url`` starts the server when it is first needed."""
    return {
        "curl": lambda c: check_curl(c, url()),
        "ferrum-local": lambda c: check_ferrum_local(c, directory, url),
        "make": lambda c: check_make(c, directory, url),
        "pip": check_pip,
        "python": lambda c: check_script(c, directory),
        "py": lambda c: check_script(c, directory),
        "git": check_clone,
        "cd": check_cd,
    }


def run_python(arguments: list[str], directory: Path, env: Mapping[str, str]) -> str:
    """Run this Python with the package on its path and no settings of the user's own.

    :returns: what it printed; fails when it did not succeed.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("FERRUM_", "OPENAI_"))}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={
            **inherited,
            "PYTHONPATH": str(ROOT),
            "PYTHONIOENCODING": "utf-8",
            "XDG_CONFIG_HOME": str(directory / "no-config"),
            "XDG_DATA_HOME": str(directory / "no-data"),
            **env,
        },
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
