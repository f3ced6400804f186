"""The options of realtime voice: part of the table in ``options``."""

from __future__ import annotations

from ferrum_local.config.option import Option
from ferrum_local.config.values import Duration, Integer

REALTIME_OPTIONS: tuple[Option, ...] = (
    Option(
        name="realtime-sessions",
        field="realtime_sessions",
        group="Limits",
        kind=Integer(0, 1024),
        default=8,
        help="Realtime sessions open at once; more are answered 503, and 0 allows none.",
    ),
    Option(
        name="realtime-idle-timeout",
        field="realtime_idle_timeout_s",
        group="Limits",
        kind=Duration(minimum_s=1.0, none_word="none"),
        default=1800.0,
        help="Time without a client's event after which a realtime session is closed.",
    ),
    Option(
        name="realtime-max-turn",
        field="realtime_max_turn_s",
        group="Limits",
        kind=Duration(minimum_s=1.0, maximum_s=3600.0),
        default=600.0,
        help="Longest turn of speech, and how much audio a realtime session keeps.",
    ),
)
