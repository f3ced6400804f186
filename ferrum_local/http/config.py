"""What the HTTP layer needs to know; the command line or an embedding program fills it in."""

from __future__ import annotations

import msgspec

MIB = 1024 * 1024
DEFAULT_MAX_STREAMS = 64


class RealtimeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``/v1/realtime``. ``max_sessions``: open at once, each of which holds a thread and counts
    as a stream. ``idle_timeout_s``: without an event from the client; None: for ever.
    ``max_audio_s``: the longest turn of speech, and how much audio a session keeps.
    """

    max_sessions: int = 8
    idle_timeout_s: float | None = 1800.0
    max_audio_s: float = 600.0
    max_message_bytes: int = 24 * MIB  # holds OpenAI's limit, 15 MiB of audio, as base64


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits, keys and origins of one application.

    ``api_keys``, ``launch_key`` and the lines of ``api_key_file`` open the server; without any of
    the three no key is asked for. ``cors_origins``: origins beyond the
    local ones, ``*`` in a pattern stands for anything, ``"*"`` alone for every origin, ``"null"``
    for opaque ones. ``allowed_hosts``: names beside loopback ones that a Host header may carry.
    ``max_streams``: generations at once; more get 503, so that /health still answers.
    ``bound_host`` is the address listened on: 0.0.0.0 and ``::`` switch the Host check off
    unless ``allowed_hosts`` names some. ``owner_only``: nobody but this user can connect, so
    ``POST /shutdown`` needs no key. ``request_timeout_s`` bounds queueing and generation.
    """

    api_keys: tuple[str, ...] = ()
    api_key_file: str | None = None
    launch_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    bound_host: str = "127.0.0.1"
    owner_only: bool = False
    max_body_bytes: int = 32 * MIB
    max_upload_bytes: int = 1024 * MIB  # of a recording; kept on disk, not in memory
    max_json_depth: int = 64
    head_timeout_s: float = 10.0  # for a request's head to arrive completely
    client_timeout_s: float = 60.0  # for the next bytes of a body, or to take a piece of a reply
    body_timeout_s: float = 60.0  # for a request body to arrive completely
    upload_timeout_s: float = 900.0  # the same for an uploaded file
    max_streams: int = DEFAULT_MAX_STREAMS
    keep_alive_s: float = 3.0  # between comments on a stream that has nothing to say
    request_timeout_s: float | None = None
    any_model_name: bool = False
    allow_local_files: bool = False  # images may be paths of files on this machine
    media_dir: str | None = None  # images may be file:// URLs of files below it
    allow_remote_media: bool = False  # images may be URLs of public hosts
    log_content: bool = False  # what is asked and answered goes to the log
    debug: bool = False
    realtime: RealtimeLimits = RealtimeLimits()

    @property
    def needs_key(self) -> bool:
        return bool(self.api_keys or self.api_key_file or self.launch_key)
