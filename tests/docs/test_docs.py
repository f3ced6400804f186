"""The docs are right: every command and snippet in them works, every link leads somewhere."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import click
import pytest

from ferrum_local.cli.app import cli
from ferrum_local.config import OPTIONS, resolve
from ferrum_local.config.options import CONFIG_ENV
from ferrum_local.config.show import default_text
from ferrum_local.http.app import create_app
from ferrum_local.http.config import HttpConfig
from tests.conftest import MINILM, SMOLLM2, serve
from tests.docs.commands import ADDRESS, ROOT, VOICE, Command, checks, run_python, split_commands
from tests.docs.markdown import Block, Page, Unreadable
from tests.fakes import ScriptedEngine


def flags_of(command: click.Command) -> Iterator[str]:
    """Of a command and all that it has under it."""
    yield from (flag for parameter in command.params for flag in parameter.opts)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, name
            yield from flags_of(child)


WHISPER = ROOT / "models" / "whisper-tiny.en"
NAMES = ("README.md", "CHANGELOG.md", "models/README.md",
         *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))  # fmt: skip
PAGES = {name: Page.read(ROOT, name) for name in NAMES}
BLOCKS = [block for page in PAGES.values() for block in page.blocks]
LANGUAGES = ("sh", "python", "toml", "json", "text", "js", "rust")  # the last: test_sidecar.py
LINKS = [(name, link) for name, page in PAGES.items() for link in page.links()]
OPTIONS_BY_FLAG = {option.flag: option for option in OPTIONS}
FLAGS = {
    *OPTIONS_BY_FLAG,
    *(f"--no-{o.name}" for o in OPTIONS if not o.kind.metavar),
    *flags_of(cli),
    "--help",
}
# Flags of the scripts that take some, as they stand in their argument parsers.
FLAGS_OF_SCRIPTS = {
    flag
    for script in (
        "bench_llm.py",
        "bench_embeddings.py",
        "bench_realtime.py",
        "bench_speech.py",
        "build_sidecar.py",
        "soak.py",
    )
    for flag in re.findall(r'"(--[a-z][a-z-]*)"', (ROOT / "scripts" / script).read_text("utf-8"))
}
FLAGS_OF_OTHERS = {"--no-cache-dir", "--force-reinstall", "--universal"}  # of pip and uv
VARIABLES = {*(option.env for option in OPTIONS), CONFIG_ENV, "FERRUM_CACHE_DIR"}

every_page = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)


def every_block(*languages: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in languages], ids=str)


@pytest.fixture(scope="module")
def url() -> Iterator[Callable[[], str]]:
    """A server that starts with the first example that calls it. Examples set no limit, and a
    small model may go on and on: the small context ends it."""
    running: list[str] = []
    speech = ["--whisper-model", str(WHISPER), "--voice", str(VOICE)] if VOICE.exists() else []
    life = serve(
        "--model", str(SMOLLM2), "--ctx-size", "320", "--slots", "2",
        "--embedding-model", str(MINILM), *speech,
    )  # fmt: skip

    def address() -> str:
        if not running:
            running.append(next(life).url)
        return running[0]

    yield address
    if running:
        assert next(life, None) is None


# Blocks


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_has_a_language_that_is_tested(block: Block) -> None:
    assert block.language in LANGUAGES
    assert block.text.strip()


@every_block("sh")
def test_the_commands_work(block: Block, url: Callable[[], str], tmp_path: Path) -> None:
    check = checks(url, tmp_path)
    commands = list(split_commands(block.text))
    assert commands
    for command in commands:
        assert command.program in check, f"no check for {command.program}: make it a text block"
        check[command.program](command)


@every_block("text")
def test_commands_in_a_text_block_exist(
    block: Block, url: Callable[[], str], tmp_path: Path
) -> None:
    """Such blocks are output, or commands for other systems; ours among them are checked."""
    check_known(block.text.splitlines(), checks(url, tmp_path))


@every_page
def test_commands_within_the_text_exist(page: Page, url: Callable[[], str], tmp_path: Path) -> None:
    """`make test` in a sentence; a lone `make` is only a name."""
    spans = [span.replace("\n", " ") for span in page.code_spans()]
    check_known((span for span in spans if " " in span), checks(url, tmp_path))


def check_known(lines: Iterable[str], check: Mapping[str, Callable[[Command], None]]) -> None:
    for line in lines:
        if line.startswith(("py ", ".venv\\")):  # Windows
            line = line.replace("\\", "/")
        try:
            commands = list(split_commands(line))
        except ValueError:
            continue  # not a command
        for command in commands:
            if command.program in check:
                check[command.program](command)


@every_block("python")
def test_the_program_runs_and_prints(block: Block, url: Callable[[], str], tmp_path: Path) -> None:
    text = block.text
    if ADDRESS in text:
        text = text.replace(ADDRESS, url())
    else:
        assert "HttpServer" in text or '"serve"' in text, (
            "a program calls the default address or its own server"
        )
    program = tmp_path / "example.py"
    program.write_text(text, encoding="utf-8")
    assert run_python([str(program)], ROOT, {}).strip()


@every_block("toml")
def test_the_configuration_file_is_valid(block: Block, tmp_path: Path) -> None:
    (tmp_path / "ferrum.toml").write_text(block.text, encoding="utf-8")
    resolved = resolve({}, {"XDG_CONFIG_HOME": str(tmp_path / "none")}, cwd=tmp_path)
    assert resolved.config_file is not None
    keys = re.findall(r"^(\w+) *=", block.text, re.MULTILINE)
    fields = {option.toml_key: option.field for option in OPTIONS}
    assert keys and all("ferrum.toml" in str(resolved.sources[fields[key]]) for key in keys)


@every_block("json")
def test_the_json_parses(block: Block) -> None:
    json.loads(block.text)


# Links, names and numbers in the text


@pytest.mark.parametrize(("name", "link"), LINKS, ids=[f"{n}-to-{link}" for n, link in LINKS])
def test_the_link_leads_somewhere(name: str, link: str) -> None:
    if "://" in link:
        assert link.startswith("https://")
        return
    target, _, anchor = link.partition("#")
    path = (ROOT / name).parent / target if target else ROOT / name
    assert path.exists()
    if anchor:
        relative = path.resolve().relative_to(ROOT).as_posix()
        assert anchor in PAGES[relative].anchors


@every_page
def test_every_flag_and_variable_exists(page: Page) -> None:
    for span in page.code_spans():
        if not span.startswith("py "):  # a script of its own, checked above
            flags = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", span))
            assert flags <= FLAGS | FLAGS_OF_OTHERS | FLAGS_OF_SCRIPTS
        assert set(re.findall(r"\bFERRUM_[A-Z_]*[A-Z]\b", span)) <= VARIABLES


@every_page
def test_every_source_file_that_is_named_exists(page: Page) -> None:
    for span in page.code_spans():
        if re.fullmatch(r"[\w/.-]+\.(py|cfg)|[\w/]+/", span) and not span.startswith("/"):
            places = (ROOT / span, ROOT / "ferrum_local" / span)
            is_made = span in (".venv/", ".setup/", "models/")
            assert is_made or any(place.exists() for place in places), span


def test_the_readme_has_the_options_right() -> None:
    rows = [row for row in PAGES["README.md"].table_rows() if row[0].startswith("`--")]
    assert len(rows) > 5
    for cell, default, _ in rows:
        flag, _, metavar = cell.strip("`").partition(" ")
        option = OPTIONS_BY_FLAG[flag]
        assert metavar == (option.kind.metavar or "")
        if default.startswith("`"):
            assert default.strip("`") == default_text(option)
        else:
            assert default_text(option) == ""


def test_the_api_page_lists_the_routes_that_there_are() -> None:
    page = PAGES["docs/api.md"]
    rows = [cells for cells in page.table_rows() if cells[0].startswith("[`")]
    listed = [route for cells in rows for route in re.findall(r"`([A-Z]+ /\S*)`", cells[0])]
    app = create_app(ScriptedEngine(), HttpConfig(debug=True))
    served = {
        f"{method} {re.sub(r'<(?:[^:>]+:)?(?:[a-z]+_)?id>', '{id}', rule.rule)}"
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert sorted(listed) == sorted(served)  # each once


CONSTANTS = [
    (*re.findall(r"`([^`]+)`", row[0]), row[1].strip("`"))
    for row in PAGES["docs/architecture.md"].table_rows()
    if re.fullmatch(r"`\S+\.py` `\w+`", row[0])
]


@pytest.mark.parametrize(("file", "name", "value"), CONSTANTS, ids=[c[1] for c in CONSTANTS])
def test_the_architecture_page_has_the_numbers_right(file: str, name: str, value: str) -> None:
    tree = ast.parse((ROOT / "ferrum_local" / file).read_text("utf-8"))
    values = [ast.unparse(v) for n, v in _assignments(tree) if n == name]
    assert len(values) == 1, f"{name} is not set once in {file}"
    assert eval(values[0], {"__builtins__": {}}) == eval(value, {"__builtins__": {}})


def _assignments(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value  # type: ignore[attr-defined]


# The reader of pages itself: what it would overlook, it refuses.


@pytest.mark.parametrize("text", ["```sh\nmake test\n", "Type:\n\n    make test\n"])
def test_a_block_that_would_escape_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        Page("page.md", text)


def test_a_page_is_taken_apart() -> None:
    page = Page(
        "page.md",
        "# One `two` & three\n~~~python\nprint('```')\n~~~\n## A\n## A\nsee [x](y.md#z) and "
        "`[no](link)`\n\n- item\n\n  ```\n  ls\n  ```\n",
    )
    assert page.anchors == ["one-two--three", "a", "a-1"]
    assert [(b.heading, b.language, b.line) for b in page.blocks] == [
        ("one-two--three", "python", 2), ("a-1", "none", 11)]  # fmt: skip
    assert page.links() == ["y.md#z"]
    assert list(page.code_spans()) == ["two", "[no](link)"]


def test_commands_are_taken_apart() -> None:
    text = "A=1 make serve \\\n  ARGS=\"--port 9\"  # why\n\ncurl x -d '{\n}'\n"
    commands = list(split_commands(text))
    assert [(c.program, c.env, c.words[1:]) for c in commands] == [
        ("make", {"A": "1"}, ["serve", "ARGS=--port 9"]),
        ("curl", {}, ["x", "-d", "{\n}"]),
    ]


@pytest.mark.parametrize("text", ["make test && rm -r x", "echo $(id)", "a | b", "echo 'x"])
def test_more_than_a_plain_command_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        list(split_commands(text))
