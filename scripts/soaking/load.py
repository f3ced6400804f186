"""The mixed load: what one client does next, and what it expects of the answer."""

from __future__ import annotations

import asyncio
import collections
import itertools
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from soaking.bad_input import BAD_REQUESTS, CHAT, COMPLETIONS, GARBAGE, BadRequest
from soaking.checks import (
    DONE,
    Malformed,
    answer_problems,
    error_problems,
    read_events,
    read_json,
    stream_problems,
)
from soaking.http_client import Broken, Reply, call, encode_request, exchange, send_and_leave

_MAX_WAIT_S = 5.0  # a Retry-After may say more; a soak has no patience
_LEAVE_S = 0.4  # of a client that leaves before it saw anything: at most
_SYSTEMS = tuple(
    f"You are {name}, who answers shortly and kindly. " + f"You know all about {topic}. " * n
    for name, topic, n in (("Ada", "ships", 12), ("Ben", "bread", 25), ("Cleo", "the stars", 40))
)
_QUESTIONS = (
    "Name three colours.",
    "Write one sentence about rain.",
    "What is seven and five?",
    "Count from one to twenty.",
    "Say hello in four languages 🙂.",
)
_WORDS = "river stone cloud paper horse candle window bridge garden silver hammer apple".split()

Body: TypeAlias = dict[str, Any]


class Findings:
    """What was done and what was wrong, counted; the first of each kind is kept in words."""

    def __init__(self) -> None:
        self.done: collections.Counter[str] = collections.Counter()
        self.statuses: collections.Counter[int] = collections.Counter()
        self.violations: list[str] = []

    def violation(self, what: str) -> None:
        self.violations.append(what)


class Client:
    """One of the clients: does things at random, one after the other, until told to stop.

    :param may_run: cleared while the server is to be left alone.
    """

    def __init__(
        self, number: int, port: int, seed: int, findings: Findings, may_run: asyncio.Event
    ) -> None:
        self._port = port
        self._random = random.Random(f"{seed}-{number}")
        self._findings = findings
        self._may_run = may_run
        self._ids = (f"soak-{number}-{i}" for i in itertools.count())
        self.is_busy = False
        self._actions: tuple[tuple[int, str, Callable[[], Awaitable[None]]], ...] = (
            (30, "chat", self._chat),
            (20, "streamed chat", self._stream),
            (8, "completion", self._complete),
            (8, "left mid-stream", self._leave_mid_stream),
            (6, "left mid-prefill", self._leave_mid_prefill),
            (4, "left unstreamed", self._leave_unstreamed),
            (6, "cancelled", self._cancel),
            (3, "deadline", self._deadline),
            (3, "overflow", self._overflow),
            (3, "over-long prompt", self._over_long),
            (8, "bad input", self._bad_input),
            (2, "garbage", self._garbage),
        )

    async def run(self, ends: asyncio.Event) -> None:
        weights = [weight for weight, _, _ in self._actions]
        while not ends.is_set():
            await self._may_run.wait()
            _, name, action = self._random.choices(self._actions, weights)[0]
            self.is_busy = True
            try:
                await action()
            except (Broken, Malformed, KeyError, TypeError, IndexError) as exc:
                # A field that is missing or of another type is malformed, too.
                self._findings.violation(f"{name}: {type(exc).__name__} {exc}")
            finally:
                self.is_busy = False
            self._findings.done[name] += 1
            await asyncio.sleep(self._random.expovariate(10))

    # -- requests --------------------------------------------------------------------------

    def _chat_body(self) -> Body:
        pick = self._random
        messages = [{"role": "user", "content": pick.choice(_QUESTIONS)}]
        if pick.random() < 0.6:
            messages.insert(0, {"role": "system", "content": pick.choice(_SYSTEMS)})
        if pick.random() < 0.3:  # a second turn
            messages += [{"role": "assistant", "content": "Gladly."}, dict(messages[-1])]
        body: Body = {"messages": messages, "max_tokens": pick.choice((1, 8, 24, 48))}
        body["temperature"] = pick.choice((0, 0.7, 1.5))
        if pick.random() < 0.15:
            body["n"] = 2
        if pick.random() < 0.25:
            body["stop"] = pick.choice(("\n", [".", "!"], ["ee", "🙂"]))
        if pick.random() < 0.2:
            body |= {"logprobs": True, "top_logprobs": pick.choice((0, 3))}
        if pick.random() < 0.2:
            body |= {"seed": pick.randrange(100), "repeat_penalty": 1.1, "min_p": 0.1}
        return body

    def _long_prompt(self, n_words: int) -> str:
        return " ".join(self._random.choice(_WORDS) for _ in range(n_words))

    async def _post(self, path: str, body: Body, **options: Any) -> Reply:
        """Send a request; come again when the queue is full, as told.

        Every refusal is checked here; the reply returned is the last one.
        """
        headers: Mapping[str, str] | None = options.pop("headers", None)
        return await self._exchange(encode_request("POST", path, body, headers), **options)

    async def _exchange(self, request: bytes, **options: Any) -> Reply:
        while True:
            reply = await exchange(self._port, request, **options)
            self._note(reply)
            if reply.status != 429:
                return reply
            wait_s = min(float(reply.headers.get("retry-after", "1")), _MAX_WAIT_S)
            await asyncio.sleep(wait_s * self._random.uniform(0.5, 1.0))

    def _note(self, reply: Reply) -> None:
        self._findings.statuses[reply.status] += 1
        if reply.status != 200:
            for problem in error_problems(reply.status, reply.headers, reply.body):
                self._findings.violation(problem)

    def _expect(self, name: str, reply: Reply, *statuses: int) -> bool:
        if reply.status not in statuses:
            self._findings.violation(f"{name}: {reply.status} {reply.body[:160]!r}")
        return reply.status == 200

    def _complain(self, name: str, problems: Any, body: Mapping[str, Any]) -> None:
        for problem in problems:
            asked = {key: value for key, value in body.items() if key not in ("messages", "prompt")}
            self._findings.violation(f"{name}: {problem}, asked {asked}")

    # -- what a client does --------------------------------------------------------------------

    async def _chat(self) -> None:
        body = self._chat_body()
        reply = await self._post(CHAT, body)
        if self._expect("chat", reply, 200):
            self._complain("chat", answer_problems(read_json(reply.body), body), body)

    async def _stream(self) -> None:
        body = {**self._chat_body(), "stream": True}
        if self._random.random() < 0.5:
            body["stream_options"] = {"include_usage": True}
        reply = await self._post(CHAT, body)
        if self._expect("stream", reply, 200):
            self._complain("stream", stream_problems(read_events(reply.body), body), body)

    async def _complete(self) -> None:
        body: Body = {"prompt": self._long_prompt(self._random.choice((3, 60, 300)))}
        if self._random.random() < 0.3:
            body["prompt"] = [body["prompt"], self._long_prompt(5)]
        body |= {"max_tokens": self._random.choice((1, 16)), "temperature": 0}
        if self._random.random() < 0.3:
            body |= {"echo": True, "logprobs": 2}
        if self._random.random() < 0.4:
            body["stream"] = True
        reply = await self._post(COMPLETIONS, body)
        if not self._expect("completion", reply, 200):
            return
        if body.get("stream"):
            problems = stream_problems(read_events(reply.body), body)
        else:
            problems = answer_problems(read_json(reply.body), body)
        self._complain("completion", problems, body)

    async def _leave_mid_stream(self) -> None:
        body = {**self._chat_body(), "stream": True, "max_tokens": 200, "ignore_eos": True}
        n_events = self._random.randrange(1, 12)
        self._expect("leave", await self._post(CHAT, body, leave_after_events=n_events), 200)

    async def _leave_mid_prefill(self) -> None:
        body = {"prompt": self._long_prompt(500), "max_tokens": 50, "stream": True}
        await self._send_and_leave(COMPLETIONS, body)

    async def _leave_unstreamed(self) -> None:
        await self._send_and_leave(CHAT, {**self._chat_body(), "max_tokens": 200})

    async def _send_and_leave(self, path: str, body: Body) -> None:
        request = encode_request("POST", path, body)
        await send_and_leave(self._port, request, self._random.uniform(0.0, _LEAVE_S))

    async def _cancel(self) -> None:
        name = next(self._ids)
        body = {**self._chat_body(), "max_tokens": 300, "ignore_eos": True, "stop": None}
        body["stream"] = self._random.random() < 0.5
        headers = {"X-Request-Id": name}
        answer = asyncio.ensure_future(self._post(CHAT, body, headers=headers))
        await asyncio.sleep(self._random.uniform(0.1, 1.5))
        reply = await call(self._port, "DELETE", f"/v1/requests/{name}")
        self._expect("cancel", reply, 200, 404)
        last = await answer
        if reply.status != 200:  # it waited to come again, or had ended
            return
        if self._expect("cancelled", last, 499, 200) and body["stream"]:
            end = read_events(last.body)[-1]
            # It may have come to its own end at the same moment.
            if end != DONE and read_json(end.encode())["error"]["code"] != "cancelled":
                self._findings.violation(f"a cancelled stream ends with {end}")

    async def _deadline(self) -> None:
        body = {**self._chat_body(), "max_tokens": 200, "ignore_eos": True}
        reply = await self._post(CHAT, body, headers={"X-Ferrum-Timeout": "0.5"})
        self._expect("deadline", reply, 200, 504)

    async def _overflow(self) -> None:
        """More at once than can wait; each must be answered or told when to come again."""
        body: Body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        replies = await asyncio.gather(*(call(self._port, "POST", CHAT, body) for _ in range(12)))
        for reply in replies:
            self._note(reply)
            self._expect("overflow", reply, 200, 429)

    async def _over_long(self) -> None:
        body: Body = {"prompt": self._long_prompt(1500), "stream": self._random.random() < 0.5}
        reply = await self._post(COMPLETIONS, body)
        self._expect("over-long prompt", reply, 400)
        if read_json(reply.body)["error"]["code"] != "context_length_exceeded":
            self._findings.violation(f"over-long prompt: {reply.body[:160]!r}")

    async def _bad_input(self) -> None:
        await self.send_bad(self._random.choice(BAD_REQUESTS))

    async def send_bad(self, bad: BadRequest) -> None:
        reply = await self._exchange(bad.request)
        self._expect(f"bad input ({bad.name})", reply, *bad.statuses)

    async def _garbage(self) -> None:
        await self.send_garbage(self._random.choice(GARBAGE))

    async def send_garbage(self, request: bytes) -> None:
        answer = await send_and_leave(self._port, request, 1.0)
        if answer and not answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")):
            self._findings.violation(f"garbage {request[:40]!r} was answered {answer[:60]!r}")
