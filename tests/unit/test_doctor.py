"""What the doctor makes of what it sees, without looking at this machine."""

from __future__ import annotations

import importlib.metadata
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from ferrum_local.cli.doctor import cpu, installation, machine
from ferrum_local.cli.doctor.child import Outcome, how_it_crashed
from ferrum_local.cli.doctor.findings import Finding
from ferrum_local.cli.found_models import FoundModel
from ferrum_local.config import resolve
from ferrum_local.types import ModelSpec

OLD_CPU = """\
processor\t: 0
model name\t: Old CPU
flags\t\t: fpu sse2 pni ssse3 avx f16c

processor\t: 1
flags\t\t: fpu
"""
BUILD = {
    "version": "0.3.36",
    "devices": ["CPU (Old CPU)"],
    "gpus": [],
    "cpu_features": ["SSE3", "AVX", "OPENMP"],
}


def worst(findings: list[Finding]) -> Finding:
    order = ("ok", "warning", "problem")
    return max(findings, key=lambda finding: order.index(finding.status))


# CPU


def test_ins_02_a_build_that_asks_for_more_than_the_cpu_has_names_the_build_to_take() -> None:
    flags = cpu.flags_of_cpuinfo(OLD_CPU)
    assert flags is not None
    facts = {**BUILD, "cpu_features": ["SSE3", "AVX", "AVX2", "FMA", "OPENMP", "REPACK"]}
    finding = worst(list(installation.check_build(Outcome(facts=facts), flags)))
    assert finding.status == "problem" and "AVX2, FMA" in finding.what
    assert finding.remedy is not None
    assert '"-DGGML_NATIVE=OFF -DGGML_AVX2=OFF -DGGML_FMA=OFF"' in finding.remedy


def test_ins_02_an_illegal_instruction_while_loading_names_the_basic_build() -> None:
    outcome = Outcome(error="illegal instruction", crash="illegal instruction")
    (finding,) = installation.check_build(outcome, None)
    assert finding.status == "problem" and finding.remedy is not None
    for option in ("AVX", "AVX2", "FMA", "F16C", "BMI2"):
        assert f"-DGGML_{option}=OFF" in finding.remedy


def test_ins_01_a_missing_llama_cpp_names_the_prebuilt_wheel_and_the_compiler() -> None:
    outcome = Outcome(error="cannot be imported: No module named 'llama_cpp'")
    (finding,) = installation.check_build(outcome, None)
    assert finding.status == "problem" and finding.remedy is not None
    assert "--extra-index-url https://abetlen.github.io/llama-cpp-python/whl/cpu" in finding.remedy
    assert "compile" in finding.remedy


def test_a_build_that_suits_is_ok_and_other_features_are_no_instruction_sets() -> None:
    findings = list(installation.check_build(Outcome(facts=BUILD), cpu.flags_of_cpuinfo(OLD_CPU)))
    assert [f.topic for f in findings] == ["llama.cpp", "cpu", "gpu"]
    assert all(f.status == "ok" for f in findings)


def test_a_gpu_without_a_build_for_it_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = worst(list(installation.check_build(Outcome(facts=BUILD), None)))
    assert finding.status == "warning" and "BACKEND=cuda" in (finding.remedy or "")


def test_windows_is_asked_for_what_it_can_tell() -> None:
    has_no_avx2 = cpu.flags_of_windows(lambda number: number not in (40, 41))
    features = ["SSE3", "AVX", "AVX2", "FMA", "AVX512", "AMX_INT8"]
    assert cpu.missing_instructions(features, has_no_avx2) == ("AVX2", "FMA", "AVX512")
    assert not cpu.missing_instructions(features, cpu.flags_of_windows(lambda number: 1))


@pytest.mark.parametrize(
    ("code", "platform", "said"),
    [
        (0, "linux", None),
        (1, "linux", None),
        (-4, "linux", "illegal instruction"),
        (-6, "linux", "aborted"),
        (-11, "linux", "segmentation fault"),
        (-15, "linux", "ended by SIGTERM"),
        (1, "win32", None),
        (0xC000001D, "win32", "illegal instruction"),
        (-0x3FFFFFE3, "win32", "illegal instruction"),
        (0xC0000142, "win32", "ended by Windows, 0xC0000142"),
    ],
)
def test_ins_02_how_a_process_ended_is_told_in_words(
    code: int, platform: str, said: str | None
) -> None:
    assert how_it_crashed(code, platform) == said


# Installation


def test_this_installation_has_all_packages_and_an_old_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = ["click>=8", "piper-tts<2,>=1.8", "nothing-like-it>=1", 'tomli; python_version < "3"',
             'onnx; extra == "dev"']  # fmt: skip
    versions = {"click": "8.1.8", "piper-tts": "1.2.0"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "requires", lambda _name: lines)
    monkeypatch.setattr(importlib.metadata, "version", version)
    piper, missing = installation.check_packages()
    assert piper.what == "piper-tts 1.2.0 is not the tested <2,>=1.8"
    assert piper.remedy == 'pip install "piper-tts<2,>=1.8"'
    assert missing.what == "nothing-like-it is missing" and missing.status == "problem"


def test_ins_03_the_voices_are_those_of_piper1_gpl_without_piper_phonemize() -> None:
    requires = importlib.metadata.requires("piper-tts") or []
    assert importlib.metadata.version("piper-tts") >= "1.8"
    assert not any("piper-phonemize" in line for line in requires)


def test_a_program_without_metadata_is_only_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = installation.check_packages("no-such-distribution")
    assert finding.status == "warning"


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 9), "problem"), ((3, 10), "ok"), ((3, 13), "ok"), ((3, 14), "problem")],
)
def test_only_tested_pythons_are_fine(version: tuple[int, int], status: str) -> None:
    assert installation.check_python(version).status == status


@pytest.mark.skipif(os.name != "posix", reason="a shell script stands for the compiler")
def test_ins_01_a_stub_is_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = installation.check_compiler()
    assert finding.status == "warning" and "prebuilt" in (finding.remedy or "")
    stub = tmp_path / "c++"
    stub.write_text("#!/bin/sh\necho 'xcrun: error: no developer tools' >&2; exit 1\n")
    stub.chmod(0o755)
    assert installation.check_compiler().status == "warning"
    stub.write_text("#!/bin/sh\necho 'c++ (Test) 13.2'\n")
    assert installation.check_compiler().what == "c++ (Test) 13.2"


def test_ins_05_missing_espeak_data_is_a_problem_found_without_a_crash(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert installation.check_espeak().status == "ok"
    monkeypatch.setattr(
        importlib.util, "find_spec",
        lambda _name: SimpleNamespace(submodule_search_locations=[str(tmp_path)]),
    )  # fmt: skip
    finding = installation.check_espeak()
    assert finding.status == "problem" and str(tmp_path) in finding.what
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert installation.check_espeak().status == "warning"


# Machine


def test_memory_that_the_largest_model_would_not_fit_into_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory = SimpleNamespace(available=1000, total=4000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    path = tmp_path / "m.gguf"
    path.write_bytes(bytes(900))
    model = FoundModel("chat", ModelSpec(id="m", path=str(path)))
    finding = machine.check_memory([model])
    assert finding.status == "warning" and "m alone needs about 1.1 KiB" in finding.what
    assert machine.check_memory([]).status == "ok"


def test_a_full_disk_is_a_warning(tmp_path: Path) -> None:
    places = (tmp_path / "none", tmp_path)
    assert machine.check_disk(places).what.endswith(str(tmp_path))
    finding = machine.check_disk(places, least_bytes=1 << 60)
    assert finding.status == "warning" and finding.remedy


def test_a_port_that_another_program_has_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "ANSWER_TIMEOUT_S", 0.1)  # that program says nothing
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        resolved = resolve({"port": port}, {}, cwd=tmp_path, config=os.devnull)
        finding = machine.check_port(resolved)
    assert finding.status == "problem" and "--port" in (finding.remedy or "")
    assert machine.check_port(resolved).status == "ok"


def test_settings_that_cannot_be_used_are_a_finding_and_not_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert machine.settle(env)[1].status == "ok"
    assert machine.settle({**env, "FERRUM_PRT": "1"})[1].status == "warning"
    resolved, finding = machine.settle({**env, "FERRUM_PORT": "x"})
    assert finding.status == "problem" and "FERRUM_PORT: expected" in finding.what
    assert resolved.settings.port == 8000


def test_no_models_at_all_say_where_to_get_some() -> None:
    (finding,) = machine.check_models([], timeout_s=1)
    assert finding.status == "warning" and "ferrum-local models pull" in (finding.remedy or "")
