"""``--offline``, proved: a whole server works in a network without a way out, and seeks none."""

from __future__ import annotations

import ipaddress
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.audio.conftest import TINY
from tests.conftest import MINILM, ROOT, SMOLLM2
from tests.contract.sidecar import PATIENCE_S, command_line, environment

DRIVER = Path(__file__).with_name("offline_driver.py")
MODELS = (SMOLLM2, MINILM, TINY)


@pytest.fixture(scope="module")
def unshare() -> list[str]:
    """A command that starts another in a network namespace of its own."""
    found = shutil.which("unshare")
    if sys.platform != "linux" or found is None:
        pytest.skip("network namespaces are Linux's, and need the program unshare")
    command = [found, "--map-root-user", "--net"]
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"network namespaces are not permitted here: {done.stderr.strip()}")
    return command


def test_everything_works_in_a_network_without_a_route_and_nothing_tries_to_leave(
    unshare: list[str], steady_voice: Path
) -> None:
    missing = [path.name for path in MODELS if not path.exists()]
    if missing:
        pytest.skip(f"models are not here: {', '.join(missing)}; run `make setup-test`")
    serve = command_line(
        "--offline", "--port", "0", "--announce", "json", "--ctx-size", "256", "--slots", "1",
        "--model", f"smol={SMOLLM2}", "--embedding-model", str(MINILM),
        "--whisper-model", str(TINY), "--voice", str(steady_voice), "--log-level", "debug",
    )  # fmt: skip
    done = subprocess.run(
        [*unshare, sys.executable, str(DRIVER), *serve], cwd=ROOT, env=environment(),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["statuses"] == [200, 200, 200, 200]
    assert "country" in found["transcript"].lower()
    assert found["answer"] and found["dimensions"] == 384 and found["n_frames"] > 0
    assert found["exit_code"] == 0

    assert found["noticed_by_instruments"] >= 1  # they would have seen an attempt
    assert found["n_without_route"] == 0
    opened = [ipaddress.ip_address(a.removeprefix("::ffff:")) for a in found["addresses"]]
    assert any(ip.is_loopback for ip in opened)
    # An unspecified address is the far end of a socket that listens.
    assert all(ip.is_loopback or ip.is_unspecified for ip in opened), found["addresses"]
    assert "--offline: " not in done.stderr  # not one attempt was refused


def test_offline_and_remote_media_contradict_each_other(tmp_path: Path) -> None:
    done = subprocess.run(
        command_line("--offline", "--allow-remote-media", "--model", str(SMOLLM2)), cwd=tmp_path,
        env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "nothing can be fetched with --offline" in done.stderr
