"""What clients call a model: names given on the command line, or made from file names."""

from __future__ import annotations

import os
import re

# A name may look like "org/model:tag"; it never looks like an absolute path.
_NAME = re.compile(r"\w[\w.:@+/-]{0,199}")
_SPLIT_PART = re.compile(r"-\d{5}-of-\d{5}$")

RESERVED = "default"  # in requests it means: the first model


def is_model_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def split_model_argument(text: str, base: str | None = None) -> tuple[str | None, str]:
    """``NAME=PATH`` as (name, path); (None, path) when there is no name.

    A path may itself contain ``=``: if something exists under the whole text (in the
    directory ``base``, else the current one), that is the path.
    """
    name, equals, path = text.partition("=")
    if not equals or not path or not is_model_name(name):
        return None, text
    if os.path.exists(os.path.join(base or "", os.path.expanduser(text))):
        return None, text
    return name, path


def model_id_from_path(path: str) -> str:
    """The file's stem, without the part number of a split model; odd characters become ``-``."""
    stem = re.split(r"[/\\]", path)[-1]
    if stem.lower().endswith(".gguf"):
        stem = stem[:-5]
    stem = _SPLIT_PART.sub("", stem)
    name = re.sub(r"[^\w.:@+-]+", "-", stem).strip("-.:@+")[:200]
    if name in ("", RESERVED):
        return "model"
    return name
