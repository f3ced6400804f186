"""``ferrum-local models``: what is there, what it is, in and out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ferrum_local.cli.pull import pull_command
from ferrum_local.cli.tables import amount, print_table
from ferrum_local.errors import ModelNotFound

if TYPE_CHECKING:
    from ferrum_local.registry.registry import RegisteredModel, Registry

_COLUMNS = ("ID", "KIND", "QUANT", "SIZE", "CONTEXT", "LICENCE", "PATH")

models_dir_option = click.option(
    "--models-dir",
    "models_dirs",
    multiple=True,
    metavar="DIR",
    help="Directory to look in as well, and first (FERRUM_MODELS_DIR).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.group(name="models", short_help="List, fetch, check and remove models.")
def models_group() -> None:
    """Models by name: those in ./models, in your data directory, and in each --models-dir.

    A server that was started without --model, or with --models-dir, loads them when they are
    first asked for.
    """


@models_group.command("list")
@models_dir_option
@json_option
def list_command(models_dirs: tuple[str, ...], as_json: bool) -> None:
    """List the models, broken files and their faults too."""
    registry = open_registry(models_dirs)
    found = registry.scan()
    if as_json:
        from ferrum_local.registry.registry import to_dict

        click.echo(_json([to_dict(model) for model in found]))
        return
    if not found:
        click.echo(f"No models in {' or '.join(registry.directories)}.", err=True)
        click.echo("`ferrum-local models pull` fetches the starter models.", err=True)
        return
    rows = [_row(model) for model in found if model.fault is None]
    if rows:
        print_table(_COLUMNS, rows)
    for model in found:
        if model.fault is not None:
            click.echo(f"{model.path}: {model.fault}", err=True)


@models_group.command("show")
@click.argument("name")
@models_dir_option
@json_option
def show_command(name: str, models_dirs: tuple[str, ...], as_json: bool) -> None:
    """Show all that a model's files say. NAME is an id, an alias or a path."""
    from ferrum_local.errors import ModelLoadError
    from ferrum_local.registry.facts import metadata_of
    from ferrum_local.registry.registry import to_dict

    model = find_model(open_registry(models_dirs), name)
    shown = to_dict(model)
    metadata: dict[str, str] = {}
    if model.path.lower().endswith(".gguf"):
        try:
            metadata = dict(metadata_of(model.path))
        except ModelLoadError:
            metadata = {}  # its fault is shown already
    if as_json:
        click.echo(_json({**shown, "metadata": metadata}))
        return
    for key, value in shown.items():
        if value not in (None, (), []):
            text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            click.echo(f"{key.replace('_', ' '):16}{text}")
    for key, text in metadata.items():
        one_line = " ".join(text.split())
        click.echo(f"  {key} = {one_line if len(one_line) <= 100 else one_line[:97] + '...'}")


@models_group.command("add")
@click.argument("path")
@click.option("--link", is_flag=True, help="Link to it instead of copying it.")
@click.option("--dir", "directory", metavar="DIR", help="Where to; your data directory otherwise.")
def add_command(path: str, link: bool, directory: str | None) -> None:
    """Check a model and put it with the others. PATH is a file or a directory."""
    from ferrum_local.registry.store import add

    place = home_dir(directory)
    facts = add(os.path.expanduser(path), place, link=link)
    click.echo(
        f"{'Linked' if link else 'Copied'} to {place}: {facts.kind}, {amount(facts.size_bytes)}"
    )


@models_group.command("rm")
@click.argument("name")
@models_dir_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm_command(name: str, models_dirs: tuple[str, ...], yes: bool) -> None:
    """Delete a model's files; of a link, only the link."""
    from ferrum_local.registry.store import paths_of, remove

    model = find_model(open_registry(models_dirs), name)
    for path in paths_of(model):
        click.echo(str(path))
    if not yes:
        click.confirm(f"Delete {model.id} ({amount(model.size_bytes)})?", abort=True)
    remove(model)
    click.echo(f"{model.id} is deleted.")


@models_group.command("verify")
@click.argument("names", nargs=-1)
@models_dir_option
def verify_command(names: tuple[str, ...], models_dirs: tuple[str, ...]) -> int:
    """Check models (all, if none is named): headers, and content where its hash is known."""
    from ferrum_local.registry.store import verify

    registry = open_registry(models_dirs)
    found = [find_model(registry, name) for name in names] or list(registry.scan())
    is_whole = True
    for model in found:
        if model.fault is not None:
            is_whole = False
            click.echo(f"BROKEN    {model.path}: {model.fault}")
            continue
        for path, verdict in verify(model, registry.directories):
            is_good = verdict in ("ok", "readable")
            is_whole = is_whole and is_good
            click.echo(f"{verdict:9} {path}" if is_good else f"BROKEN    {path}: {verdict}")
    return 0 if is_whole else 1


models_group.add_command(pull_command)


def open_registry(models_dirs: tuple[str, ...]) -> Registry:
    from ferrum_local.config import resolve
    from ferrum_local.config.library import registry_of

    return registry_of(resolve({"models_dir": models_dirs}, os.environ, cwd=Path.cwd()), os.environ)


def find_model(registry: Registry, name: str) -> RegisteredModel:
    """:raises ModelNotFound: nothing is called ``name``."""
    from ferrum_local.registry.registry import find

    models = registry.scan()
    model = find(models, name) or find(models, os.path.abspath(os.path.expanduser(name)))
    if model is None:
        known = ", ".join(model.id for model in models)
        raise ModelNotFound(f"There is no model {name!r}; there is {known or 'none at all'}")
    return model


def home_dir(directory: str | None) -> Path:
    """Where models are put: ``directory``, or the one below the user's data directory."""
    from ferrum_local.config.places import user_data_dir

    if directory is not None:
        return Path(directory).expanduser().absolute()
    return user_data_dir(os.environ) / "models"


def _row(model: RegisteredModel) -> tuple[str, ...]:
    return (
        model.id,
        model.kind,
        model.quantization or "",
        amount(model.size_bytes),
        str(model.context_length or ""),
        model.license or "",
        model.path,
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
