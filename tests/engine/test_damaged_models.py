"""Model files that are damaged or made to harm: each is refused or works, none ends the process."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ferrum_local.llm.gguf_header import read_header
from tests.conftest import ROOT
from tests.engine.tiny_models import TINY_MODELS

N_FILES = 300
INTERESTING_BYTES = (0, 1, 2, 3, 4, 7, 8, 9, 0x40, 0x7F, 0x80, 0xFF)
INTERESTING_NUMBERS = (0, 1, 2, 3, 5, 16, 63, 65, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
INTERESTING_SIZES = (0, 1, 2, 1 << 31, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)


def damaged(data: bytes, n_header: int, chance: random.Random) -> bytes:
    """The same file with one to three changes to its header, or cut short."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at = chance.randrange(n_header)
        how = chance.random()
        if how < 0.5:
            new = bytes([chance.choice((*INTERESTING_BYTES, chance.randrange(256)))])
        elif how < 0.8:
            new = struct.pack("<I", chance.choice(INTERESTING_NUMBERS))
        else:
            new = struct.pack("<Q", chance.choice(INTERESTING_SIZES))
        changed[at : at + len(new)] = new
    return bytes(changed if chance.random() < 0.95 else changed[: chance.randrange(len(changed))])


def outcomes(paths: list[Path]) -> dict[str, str]:
    """What became of each, in one child process that must live to the end."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.damaged_models"], cwd=ROOT, text=True,
        input="\n".join(map(str, paths)), capture_output=True, timeout=280, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{lines[-1]} ended the process:\n{done.stderr[-2000:]}"
    return dict(zip(lines[::2], lines[1::2], strict=True))


def test_cli_03_no_damage_to_a_header_ends_the_process(tmp_path: Path) -> None:
    sound: dict[str, tuple[bytes, int]] = {}
    for name, write in TINY_MODELS.items():
        write(tmp_path / f"{name}.gguf")
        header = read_header(tmp_path / f"{name}.gguf")
        sound[name] = ((tmp_path / f"{name}.gguf").read_bytes(), header.data_offset)
    paths = []
    for seed in range(N_FILES):
        chance = random.Random(seed)
        name = chance.choice(sorted(sound))
        paths.append(tmp_path / f"{name}-{seed}.gguf")
        paths[-1].write_bytes(damaged(*sound[name], chance))
    found = outcomes(paths)
    assert list(found) == [str(path) for path in paths]
    assert any(outcome == "works" for outcome in found.values())
    assert any("llama.cpp cannot load" in outcome for outcome in found.values())
    assert any("damaged" in outcome for outcome in found.values())
    assert any("cut short" in outcome for outcome in found.values())


@pytest.mark.parametrize("lost", ["<0x63>", "<0x00>", "<0xFF>"])
def test_a_vocabulary_without_a_token_for_some_byte_is_refused(tmp_path: Path, lost: str) -> None:
    """llama.cpp would end the process at the first text that has this byte."""
    path = tmp_path / "lossy.gguf"
    TINY_MODELS["llama"](path)
    data = path.read_bytes()
    assert data.count(lost.encode()) == 1
    path.write_bytes(data.replace(lost.encode(), b"<0xQQ>"))
    (outcome,) = outcomes([path]).values()
    assert f"no token for the byte 0x{lost[3:5]}" in outcome
