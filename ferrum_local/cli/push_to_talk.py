"""Push to talk: Enter begins and ends a turn, and interrupts an answer."""

from __future__ import annotations

import base64
import enum
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol, TextIO

import click

from ferrum_local.cli.realtime_client import RealtimeClient
from ferrum_local.errors import FerrumError

MIN_TURN_S = 0.3  # what is shorter was a slip of the finger
INTERRUPTION_ID = "interruption"  # of events that come too late when an answer has just ended
INVITATION = "Press Enter and speak, Enter again when you are done. Ctrl-C leaves."


class Devices(Protocol):
    """A microphone and a loudspeaker; see :class:`ferrum_local.cli.sound_devices.SoundDevices`."""

    @property
    def input_rate_hz(self) -> int: ...

    @property
    def is_playing(self) -> bool: ...

    def record(self, on_sound: Callable[[bytes], None]) -> None: ...

    def mute(self) -> None: ...

    def play(self, pcm: bytes) -> None: ...

    def stop_playing(self) -> float: ...


class Client(Protocol):
    def send(self, type_: str, **fields: Any) -> None: ...

    def append(self, pcm: bytes) -> None: ...


class State(enum.Enum):
    WAITING = enum.auto()
    RECORDING = enum.auto()
    ANSWERING = enum.auto()


class PushToTalk:
    """What happens on keys, sound and events; all of it on one thread.

    :param on_sound: where the microphone's thread puts what it heard; it comes back by
        ``heard`` on the right thread.
    """

    def __init__(
        self,
        client: Client,
        devices: Devices,
        *,
        on_sound: Callable[[bytes], None],
        say: Callable[[str], None] = click.echo,
    ) -> None:
        self._client = client
        self._devices = devices
        self._on_sound = on_sound
        self._say = say
        self._n_recorded_bytes = 0
        self._n_turns = 0
        self._item_id: str | None = None  # what is played, or was last
        self._response_id: str | None = None
        self.state = State.WAITING

    def key(self) -> None:
        if self.state is State.RECORDING:
            self._end_turn()
        else:
            self._interrupt()
            self._begin_turn()

    def heard(self, pcm: bytes) -> None:
        if self.state is State.RECORDING:
            self._n_recorded_bytes += len(pcm)
            self._client.append(pcm)

    def event(self, event: dict[str, Any]) -> None:
        type_ = event.get("type")
        if type_ == "error":
            self._refused(event["error"])
        elif type_ == "conversation.item.input_audio_transcription.completed":
            self._say(f"You: {event['transcript'].strip()}")
        elif type_ == "response.created":
            if self.state is State.ANSWERING:
                self._response_id = event["response"]["id"]
        elif type_ == "response.done":
            self._done(event["response"])
        elif event.get("response_id") == self._response_id is not None:
            if type_ == "response.output_audio.delta":
                self._item_id = event["item_id"]
                self._devices.play(base64.b64decode(event["delta"]))
            elif type_ == "response.output_audio_transcript.done":
                self._say(f"Answer: {event['transcript'].strip()}")

    def _begin_turn(self) -> None:
        self._n_recorded_bytes = 0
        self.state = State.RECORDING
        self._devices.record(self._on_sound)
        self._say("Listening …")

    def _end_turn(self) -> None:
        self._devices.mute()
        if self._n_recorded_bytes < MIN_TURN_S * self._devices.input_rate_hz * 2:
            self._client.send("input_audio_buffer.clear")
            self.state = State.WAITING
            self._say("That was too short. " + INVITATION)
            return
        self._n_turns += 1
        self._client.send("input_audio_buffer.commit", event_id=self._turn_id)
        self._client.send("response.create", event_id=self._turn_id)
        self.state = State.ANSWERING
        self._response_id = None

    def _interrupt(self) -> None:
        """Silence, and have the server forget what was not heard."""
        was_playing = self._devices.is_playing
        played_s = self._devices.stop_playing()
        if self.state is State.ANSWERING:
            self._client.send("response.cancel", event_id=INTERRUPTION_ID)
        if self._item_id is not None and (was_playing or self.state is State.ANSWERING):
            self._client.send(
                "conversation.item.truncate",
                event_id=INTERRUPTION_ID,
                item_id=self._item_id,
                content_index=0,
                audio_end_ms=round(played_s * 1000),
            )
        self._item_id = self._response_id = None

    @property
    def _turn_id(self) -> str:
        return f"turn_{self._n_turns}"

    def _refused(self, error: dict[str, Any]) -> None:
        if error.get("event_id") == INTERRUPTION_ID:
            return  # the answer was over before the server heard of it
        self._say(f"Error: {error['message']}")
        if self.state is State.ANSWERING and error.get("event_id") == self._turn_id:
            self.state = State.WAITING

    def _done(self, response: dict[str, Any]) -> None:
        if response["id"] != self._response_id:
            return
        if response["status"] == "failed":
            error = (response.get("status_details") or {}).get("error") or {}
            self._say(f"Error: {error.get('message', 'the answer failed')}")
        self._response_id = None
        self.state = State.WAITING


class _Over(Exception):
    """The keyboard's end was reached."""


def converse(client: RealtimeClient, devices: Devices, keys: TextIO | None = None) -> None:
    """Until Ctrl-C or the end of ``keys`` (stdin); one thread waits for each thing that happens.

    :raises FerrumError: the session ended.
    """
    inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    talk = PushToTalk(client, devices, on_sound=lambda pcm: inbox.put(lambda: talk.heard(pcm)))

    def end(error: Exception) -> Callable[[], None]:
        def raise_it() -> None:
            raise error

        return raise_it

    def read_keys() -> None:
        for _line in keys or sys.stdin:
            inbox.put(talk.key)
        inbox.put(end(_Over()))

    def read_events() -> None:
        try:
            while True:
                event = client.receive()
                inbox.put(lambda event=event: talk.event(event))  # type: ignore[misc]
        except FerrumError as error:
            inbox.put(end(error))

    for read in (read_keys, read_events):
        threading.Thread(target=read, name=read.__name__, daemon=True).start()
    click.echo(INVITATION)
    try:
        while True:
            inbox.get()()
    except (_Over, KeyboardInterrupt):
        devices.mute()
        devices.stop_playing()
