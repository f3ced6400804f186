"""A client of realtime sessions: the official SDK's connection, and what it has received."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import openai
from openai.resources.realtime.realtime import RealtimeConnection

PCM_RATE_HZ = 24_000
SECOND = PCM_RATE_HZ * 2  # bytes
SILENCE = bytes(SECOND)


class Talk:
    """``events`` are all that came, in their order."""

    def __init__(self, connection: RealtimeConnection) -> None:
        self.connection = connection
        self.events: list[Any] = []

    def next(self) -> Any:
        event = self.connection.recv()
        self.events.append(event)
        return event

    def until(self, type_: str, *, failing: bool = False) -> Any:
        """The next event of ``type_``. An error fails the test, unless it may come."""
        while True:
            event = self.next()
            if event.type == type_:
                return event
            assert failing or event.type != "error", event.error

    def error(self) -> Any:
        return self.until("error", failing=True).error

    def update(self, **session: Any) -> Any:
        self.connection.session.update(session={"type": "realtime", **session})  # type: ignore[misc, arg-type]
        return self.until("session.updated").session

    def append(self, pcm: bytes) -> None:
        self.connection.input_audio_buffer.append(audio=base64.b64encode(pcm).decode())

    def say(self, pcm: bytes, *, step: int = SECOND // 10) -> None:
        """Send a recording in pieces of 100 ms, as fast as they are taken."""
        for start in range(0, len(pcm), step):
            self.append(pcm[start : start + step])

    def write(self, text: str, **more: Any) -> Any:
        """Add a user's message."""
        self.connection.conversation.item.create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": text}],
                **more,
            }
        )
        return self.until("conversation.item.done").item

    def of(self, *types: str) -> list[Any]:
        return [event for event in self.events if event.type in types]

    def joined(self, type_: str) -> str:
        return "".join(event.delta for event in self.of(type_))

    def heard(self) -> bytes:
        """The audio of all answers so far."""
        return b"".join(base64.b64decode(e.delta) for e in self.of("response.output_audio.delta"))


@contextmanager
def talking(client: openai.OpenAI, **options: Any) -> Iterator[Talk]:
    """A session that has begun."""
    with client.realtime.connect(**options) as connection:
        talk = Talk(connection)
        assert talk.next().type == "session.created"
        yield talk


def without_repeats(events: Sequence[Any]) -> list[str]:
    """The types of events, with those that come several times in a row once."""
    return [type_ for type_, _ in groupby(event.type for event in events)]


def closing(connect: Callable[[], Any]) -> Any:
    """What ``connect`` is refused with: the HTTP reply to the handshake."""
    from websockets.exceptions import InvalidStatus

    try:
        with connect() as connection:
            raise AssertionError(f"it was let in: {connection}")
    except InvalidStatus as error:
        return error.response
