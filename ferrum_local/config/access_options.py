"""Options of the group Access: who may call the server, and what a request may reach."""

from __future__ import annotations

from ferrum_local.config.option import Option
from ferrum_local.config.values import IPV6, Switch, Text

_PATH = Text(metavar="PATH", expected="a path")

ACCESS_OPTIONS: tuple[Option, ...] = (
    Option(
        name="api-key",
        field="api_key",
        group="Access",
        kind=Text(
            metavar="KEY", expected="a key of visible ASCII characters", pattern=r"[!-~]{1,512}"
        ),
        default=(),
        many=True,
        secret=True,
        help="Key that clients must send. Without any, no key is asked for.",
    ),
    Option(
        name="api-key-file",
        field="api_key_file",
        group="Access",
        kind=_PATH,
        default=None,
        path=True,
        help="File with a key on each line, bare or as NAME: KEY; read again when it changes.",
    ),
    Option(
        name="token-file",
        field="token_file",
        group="Access",
        kind=_PATH,
        default=None,
        path=True,
        help="Write a fresh random key there for this launch; clients must send it.",
    ),
    Option(
        name="insecure",
        field="insecure",
        group="Access",
        kind=Switch(),
        default=False,
        help="Listen beyond this machine although no key is asked for.",
    ),
    Option(
        name="cors-origin",
        field="cors_origin",
        group="Access",
        kind=Text(
            metavar="ORIGIN",
            expected="an origin like https://app.example.com, or * for all",
            pattern=r"\*|null|[a-z*][a-z0-9+.*-]*://[^/\s?#]*/?",
            lower=True,
        ),
        default=(),
        many=True,
        help="Web page origin that may call the server, beside local ones; * is all.",
    ),
    Option(
        name="allowed-host",
        field="allowed_host",
        group="Access",
        kind=Text(
            metavar="NAME",
            expected="a host name like nas.local, without http:// and port",
            pattern=rf"\*|[\w.-]+|{IPV6}",
            lower=True,
        ),
        default=(),
        many=True,
        help="Name the server may be called by; a wide --host allows any until one is given.",
    ),
    Option(
        name="allow-local-files",
        field="allow_local_files",
        group="Access",
        kind=Switch(),
        default=False,
        help="Let requests name any image file on this machine by its path.",
    ),
    Option(
        name="media-dir",
        field="media_dir",
        group="Access",
        kind=Text(metavar="DIR", expected="a directory"),
        default=None,
        path=True,
        help="Directory whose images requests may name by file:// URLs.",
    ),
    Option(
        name="allow-remote-media",
        field="allow_remote_media",
        group="Access",
        kind=Switch(),
        default=False,
        help="Fetch images that requests name by http:// and https:// URLs of public hosts.",
    ),
    Option(
        name="offline",
        field="offline",
        group="Access",
        kind=Switch(),
        default=False,
        help="Refuse every connection that would leave this machine, even of libraries.",
    ),
)
