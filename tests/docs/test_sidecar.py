"""The page for apps is right: its programs run, its tables are those of the code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ferrum_local.cli import EXIT_INTERRUPTED
from ferrum_local.errors import ConfigError, ModelLoadError
from ferrum_local.server.events import Event
from ferrum_local.server.exit_codes import ExitCode
from tests.conftest import ROOT, SMOLLM2
from tests.contract.sidecar import PATIENCE_S, environment
from tests.docs.markdown import Block, Page

PAGE = Page.read(ROOT, "docs/sidecar.md")
ROWS = list(PAGE.table_rows())
SERVE = ["-m", "ferrum_local", "serve", "--model", str(SMOLLM2), "--ctx-size", "256"]
NEEDS_MODEL = pytest.mark.skipif(not SMOLLM2.exists(), reason="the starter models are not fetched")

# What the reader's app does with the Electron module: it asks once, then stops the server.
USE_JS = """
const { startServer } = require("./sidecar.js");
const [command, ...args] = process.argv.slice(2);
const seen = new Set();
startServer(command, args, (event) => seen.add(event.event)).then(async ({ url, key, stop }) => {
  const reply = await fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
    body: JSON.stringify({ messages: [{ role: "user", content: "Hi" }], max_tokens: 4 }),
  });
  console.log(reply.status, await stop(), [...seen].join(" "));
}, (error) => console.log("refused:", error.message));
"""
USE_RUST = """
fn main() {
    let mut arguments = std::env::args().skip(1);
    let token_file = arguments.next().unwrap();
    let mut command = Command::new(arguments.next().unwrap());
    command.args(arguments);
    match Sidecar::start(&mut command, Path::new(&token_file), |_line| {}) {
        Ok(mut server) => {
            assert!(server.url.starts_with("http://127.0.0.1:") && server.key.len() > 40);
            println!("{:?}", server.stop().unwrap().code());
        }
        Err(error) => println!("refused: {error}"),
    }
}
"""


def blocks(language: str) -> list[Block]:
    return [block for block in PAGE.blocks if block.language == language]


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@NEEDS_MODEL
def test_life_01_the_electron_module_starts_asks_and_stops(tmp_path: Path) -> None:
    module, _main = blocks("js")
    (tmp_path / "sidecar.js").write_text(module.text, "utf-8")
    (tmp_path / "use.js").write_text(USE_JS, "utf-8")
    told = run("node", "use.js", sys.executable, *SERVE, cwd=tmp_path)
    assert told == "200 0 listening loading ready draining exited"
    told = run("node", "use.js", sys.executable, *SERVE[:3], "--model", "no.gguf", cwd=tmp_path)
    assert told.startswith("refused: ") and "no.gguf" in told and told.endswith("(exit code 2)")


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_electron_main_file_parses(tmp_path: Path) -> None:
    _module, main = blocks("js")
    (tmp_path / "main.js").write_text(main.text, "utf-8")
    run("node", "--check", "main.js", cwd=tmp_path)


@pytest.mark.skipif(shutil.which("rustc") is None, reason="rustc is not installed")
@NEEDS_MODEL
def test_life_01_the_tauri_module_starts_and_stops(tmp_path: Path) -> None:
    (module,) = blocks("rust")
    (tmp_path / "main.rs").write_text(module.text + USE_RUST, "utf-8")
    run("rustc", "--edition", "2021", "main.rs", cwd=tmp_path)
    token = str(tmp_path / "token")
    assert run("./main", token, sys.executable, *SERVE, cwd=tmp_path) == "Some(0)"
    told = run("./main", token, sys.executable, *SERVE[:3], "--model", "no.gguf", cwd=tmp_path)
    assert told.startswith("refused: ") and "no.gguf" in told


def test_the_table_of_events_has_all_with_their_fields() -> None:
    told = {
        row[0].strip("`"): re.findall(r"`(\w+)`", row[1])
        for row in ROWS
        if len(row) == 3 and re.fullmatch(r"`[a-z]+`", row[0]) and row[0] != "`code`"
    }
    assert told == {
        kind.__struct_config__.tag: list(kind.__struct_fields__) for kind in Event.__subclasses__()
    }


def test_the_table_of_reasons_has_all_that_the_code_gives() -> None:
    told = {
        code
        for row in ROWS
        if len(row) == 2
        for code in re.findall(r"`([a-z_]+)`", row[0])
        if not row[0].startswith("`code`")
    }
    sources = (ROOT / "ferrum_local" / "server").glob("*.py")
    text = "\n".join(path.read_text("utf-8") for path in sources)
    given = set(re.findall(r'^(?:    code|INTERNAL_ERROR) = "(\w+)"', text, re.MULTILINE))
    given |= set(re.findall(r'\.fatal\(\s*"(\w+)"', text))
    assert told == given | {ModelLoadError.code, ConfigError.code}


def test_the_table_of_exit_codes_is_that_of_the_code() -> None:
    rows = Page.read(ROOT, "docs/configuration.md").table_rows()
    told = [int(row[0]) for row in rows if len(row) == 2 and row[0].isdigit()]
    assert told == [int(code) for code in ExitCode]
    assert EXIT_INTERRUPTED == ExitCode.INTERRUPTED
