"""Multipart forms: small fields as text, one file on disk, everything bounded."""

from __future__ import annotations

import io
import re
from typing import BinaryIO, cast

import msgspec
from flask import Request, request
from werkzeug.datastructures import FileStorage
from werkzeug.exceptions import RequestEntityTooLarge

from ferrum_local.http.bodies import broken_off, time_limit
from ferrum_local.http.config import MIB
from ferrum_local.http.errors import ApiError
from ferrum_local.http.request_context import current_record
from ferrum_local.http.state import state

MAX_FIELDS = 100
MAX_FIELD_BYTES = MIB  # of all fields that are no file, together
FILE_FIELD = "file"
# The official SDK spells lists "name[]" and objects "name[key]".
_BRACKETED = re.compile(r"([^\[\]]+)\[([^\[\]]*)\]")


class Form(msgspec.Struct, frozen=True):
    """``fields``: text, lists of text, or objects of text. ``file`` is seekable, and the
    caller's to close."""

    fields: dict[str, object]
    file: BinaryIO


def read_form(lists: frozenset[str]) -> Form:
    """The current request's form with its one file. Files above half a megabyte lie on disk.

    :param lists: the fields that may be given several times.
    :raises ApiError: 400, 408, 413 or 415, with a message that says what was expected.
    """
    if request.mimetype != "multipart/form-data":
        shown = request.mimetype[:80] or "no Content-Type"
        raise ApiError(
            f"The request body must be sent as multipart/form-data (got {shown}).",
            status=415,
            code="unsupported_media_type",
        )
    config = state().config
    request.max_content_length = config.max_upload_bytes
    request.max_form_memory_size = MAX_FIELD_BYTES
    request.max_form_parts = MAX_FIELDS
    with time_limit(config.upload_timeout_s) as expired:
        try:
            items = list(request.form.items(multi=True))
            files = list(request.files.items(multi=True))
        except RequestEntityTooLarge as error:
            raise _too_large(request, config.max_upload_bytes) from error
        except Exception as error:  # each server has its own errors for bad chunks and lost peers
            if not expired.is_set():
                raise broken_off() from error
    if expired.is_set():
        raise ApiError("The request body came too slowly.", status=408, code="body_timeout")
    fields = _fields(items, lists)
    file = _only_file(files, fields)
    stream = file.stream
    # Flask closes the files of a request before a streamed reply begins.
    file.stream = io.BytesIO()
    return Form(fields, cast(BinaryIO, stream))


def _only_file(files: list[tuple[str, FileStorage]], fields: dict[str, object]) -> FileStorage:
    for name, _ in files:
        if name != FILE_FIELD:
            raise ApiError(
                f"{name[:60]}: unknown file; the recording is sent as {FILE_FIELD}",
                param=name[:60],
                code="unknown_parameter",
            )
    if len(files) > 1:
        raise ApiError("file: expected one, got several", param=FILE_FIELD)
    if not files:
        got = ", got text" if FILE_FIELD in fields else ""
        raise ApiError(
            f"file: required, as a file of the form{got}",
            param=FILE_FIELD,
            code="missing_required_parameter",
        )
    return files[0][1]


def _fields(items: list[tuple[str, str]], lists: frozenset[str]) -> dict[str, object]:
    fields: dict[str, object] = {}
    for spelled, text in items:
        bracketed = _BRACKETED.fullmatch(spelled)
        name, key = (bracketed[1], bracketed[2]) if bracketed else (spelled, "")
        if name in lists:
            values = fields.setdefault(name, [])
            assert isinstance(values, list)
            values.append(text)
        elif key:
            members = fields.setdefault(name, {})
            if not isinstance(members, dict):
                raise ApiError(f"{name[:60]}: given twice", param=name[:60])
            members[key] = text
        elif name in fields:
            raise ApiError(f"{name[:60]}: given twice", param=name[:60])
        else:
            fields[name] = text
    return fields


def _too_large(request: Request, limit: int) -> ApiError:
    n_bytes = request.content_length or current_record().bytes_received
    message = f"The upload is larger than this server accepts ({limit} bytes)."
    if n_bytes <= limit:
        message = (
            f"The form has more than {MAX_FIELDS} fields, or more than {MAX_FIELD_BYTES} bytes in "
            "fields that are no file."
        )
    return ApiError(message, status=413, code="body_too_large")
