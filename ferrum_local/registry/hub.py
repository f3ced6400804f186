"""Which files ``owner/repo[:file]`` means on a Hugging Face hub."""

from __future__ import annotations

import re
from typing import NamedTuple

from ferrum_local.registry.download import DownloadError

_REPO = re.compile(r"[\w.-]+/[\w.-]+")
_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")
PREFERRED = "Q4_K_M"  # small, and close to the original


class HubFile(NamedTuple):
    """``sha256`` None: the hub does not say."""

    name: str
    url: str
    sha256: str | None
    size_bytes: int | None


def is_hub_id(text: str) -> bool:
    """``owner/repo``, or ``owner/repo:file``."""
    return _REPO.fullmatch(text.partition(":")[0]) is not None


def hub_files(source: str) -> tuple[list[HubFile], dict[str, str]]:
    """The GGUF files of one model, all parts of it, and the headers to fetch them with.

    :param source: ``owner/repo:file``, where ``file`` is a name or a quantisation; without one,
        the repository's only model or its Q4_K_M is meant.
    :raises DownloadError: no such repository or file, or several that could be meant.
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    repo, _, wanted = source.partition(":")
    api = huggingface_hub.HfApi()
    try:
        info = api.model_info(repo, files_metadata=True, timeout=10)
    except HfHubHTTPError as error:
        status = error.response.status_code
        hint = " (a private or gated one needs HF_TOKEN)" if status in (401, 403, 404) else ""
        raise DownloadError(f"{repo}: the hub says {status}{hint}") from error
    except (OSError, OfflineModeIsEnabled) as error:
        raise DownloadError(f"offline: {api.endpoint} cannot be reached") from error
    except Exception as error:  # the errors of its HTTP library, which are no OSErrors
        raise DownloadError(f"offline: {api.endpoint} cannot be reached ({error})") from error
    files = {file.rfilename: file for file in info.siblings or ()}
    token = huggingface_hub.get_token()
    return [
        HubFile(
            name=name,
            url=huggingface_hub.hf_hub_url(repo, name, endpoint=api.endpoint),
            sha256=lfs.sha256 if (lfs := files[name].lfs) else None,
            size_bytes=files[name].size,
        )
        for name in choose_files(list(files), wanted, repo)
    ], ({"Authorization": f"Bearer {token}"} if token else {})


def choose_files(names: list[str], wanted: str, repo: str) -> list[str]:
    """The parts of the one model that is wanted.

    :param wanted: a file's name or part of it, like a quantisation; empty: what suits most.
    :raises DownloadError: none, or several that could be meant; the message lists them.
    """
    models: dict[str, list[str]] = {}  # name without the part's number -> parts
    for name in sorted(names):
        if name.lower().endswith(".gguf") and "mmproj" not in name.lower():
            models.setdefault(_PART.sub("", name), []).append(name)
    if not models:
        raise DownloadError(f"{repo}: has no GGUF file")
    by_name = [m for m in models if wanted and wanted in (m, *models[m])]
    text = wanted or (PREFERRED if len(models) > 1 else "")
    fitting = by_name or [m for m in models if text.lower() in m.lower()]
    if len(fitting) == 1:
        return models[fitting[0]]
    what = f"none is called {wanted}" if wanted and not fitting else "there are several"
    raise DownloadError(f"{repo}: {what}; name one with {repo}:FILE, of {', '.join(models)}")
