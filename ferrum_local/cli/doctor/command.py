"""The command: findings one after the other, as they are made."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ferrum_local.cli.doctor.findings import Finding

_MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "problem": ("PROBLEM", "red")}
_MARK_WIDTH = 8
_BUILD_TIMEOUT_S = 60.0


def examine(wanted: tuple[str, ...], timeout_s: float) -> Iterator[Finding]:
    """All findings, cheap ones first.

    :param wanted: the models to look at; none: those that are found.
    """
    from ferrum_local.cli.doctor import cpu, installation, machine
    from ferrum_local.cli.doctor.child import run_probe
    from ferrum_local.cli.found_models import find_models, model_at
    from ferrum_local.config.places import starter_dirs

    env = dict(os.environ)
    yield installation.check_python()
    yield from installation.check_packages()
    resolved, finding = machine.settle(env)
    yield finding
    yield from installation.check_build(
        run_probe("build", timeout_s=_BUILD_TIMEOUT_S), cpu.cpu_flags()
    )
    yield installation.check_compiler()
    models = find_models(resolved, env)
    if wanted:
        models = tuple(model_at(argument, models) for argument in wanted)
    yield machine.check_memory([model for model in models if model.problem is None])
    yield machine.check_disk(starter_dirs(env))
    yield machine.check_port(resolved)
    yield installation.check_espeak()
    yield from machine.check_models(models, timeout_s=timeout_s)


def _show(finding: Finding) -> None:
    mark, colour = _MARKS[finding.status]
    click.echo(f"{click.style(mark.ljust(_MARK_WIDTH), fg=colour)} {finding.topic}: {finding.what}")
    if finding.remedy is not None:
        click.echo(f"{' ' * _MARK_WIDTH} → {finding.remedy}")
    sys.stdout.flush()


@click.command(name="doctor", short_help="Check this machine, the installation and the models.")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    help="Check this model only, a name or path; can be given several times.  [all that are found]",
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="For each model.",
)
def doctor_command(models: tuple[str, ...], as_json: bool, timeout_s: float) -> int:
    """Say what works here, what does not, and what to do about it.

    Every model that is found is loaded and asked for a word, one after the other, in a process of
    its own. The exit code is 1 if there is a problem.
    """
    import msgspec

    findings = []
    for finding in examine(models, timeout_s):
        findings.append(finding)
        if not as_json:
            _show(finding)
    counts = {kind: sum(f.status == kind for f in findings) for kind in _MARKS}
    if as_json:
        report = {
            "ok": not counts["problem"],
            "problems": counts["problem"],
            "warnings": counts["warning"],
            "findings": findings,
        }
        click.echo(msgspec.json.encode(report).decode())
    else:
        click.echo(_summary(counts["problem"], counts["warning"]))
    return 1 if counts["problem"] else 0


def _summary(n_problems: int, n_warnings: int) -> str:
    if not n_problems and not n_warnings:
        return "All is well."
    problems = f"{n_problems} problem{'' if n_problems == 1 else 's'}"
    warnings = f"{n_warnings} warning{'' if n_warnings == 1 else 's'}"
    return f"{problems}, {warnings}."
