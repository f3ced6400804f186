"""The benchmark's own parts: statistics, reading streams, verdicts and the table."""

from __future__ import annotations

import argparse
import asyncio
import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bench_llm
from bench.http_client import (
    Address,
    BenchError,
    Poller,
    dechunk,
    parse_reply,
    read_generation,
    send,
    sse_events,
    text_times,
)
from bench.lab import Generation, at_once, wall_s
from bench.prompts import random_words, unshared_prompts
from bench.report import Row, Target, fact_list, number, table
from bench.servers import read_series
from bench.stats import decode_rate, gaps, median, percentile

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


def event(body: object) -> bytes:
    data = f"data: {body if isinstance(body, str) else json.dumps(body)}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def chat_delta(**delta: str) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


STREAM = [
    HEAD + event(chat_delta(role="assistant", content="")),
    event(chat_delta(content="Hel")),
    event(chat_delta(content="lo")) + event(chat_delta(content="é")),
    event({"choices": [], "usage": USAGE}) + event("[DONE]") + b"0\r\n\r\n",
]


def timed(pieces: list[bytes]) -> list[tuple[float, bytes]]:
    """Pieces that come one second apart, from second 1 on."""
    return [(float(second), piece) for second, piece in enumerate(pieces, 1)]


def generation(sent_s: float, *times_s: float) -> Generation:
    return Generation(sent_s, times_s, "", 1, 0, len(times_s))


# -- statistics -----------------------------------------------------------------------------


def test_percentile_is_one_of_the_values_and_shows_the_worst_of_few() -> None:
    assert percentile([5.0, 1.0, 3.0], 50) == 3.0
    assert percentile([1.0] * 20 + [9.0], 99) == 9.0
    assert percentile([float(n) for n in range(1, 201)], 99) == 198.0
    with pytest.raises(ValueError):
        percentile([], 99)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.1, 100))
def test_percentile_stays_within_the_values_and_grows_with_the_percentage(
    values: list[float], percent: float
) -> None:
    found = percentile(values, percent)
    assert found in values
    assert min(values) <= found <= percentile(values, 100) == max(values)


def test_gaps_and_rate_leave_the_prompt_out() -> None:
    assert gaps([1.0, 1.5, 3.0]) == [0.5, 1.5]
    # Four tokens, the first of which is the prompt's work: three in 1.5 s.
    assert decode_rate([10.0, 10.5, 11.0, 11.5], 4) == 2.0
    # Two tokens in one event count as two.
    assert decode_rate([10.0, 11.0], 3) == 2.0
    with pytest.raises(ValueError):
        decode_rate([10.0], 1)


def test_median_of_an_even_number_lies_between() -> None:
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5


# -- prompts --------------------------------------------------------------------------------


def test_words_repeat_for_a_key_and_differ_between_keys() -> None:
    assert random_words(40, "streams", 0) == random_words(40, "streams", 0)
    assert random_words(40, "streams", 0) != random_words(40, "streams", 1)
    assert len(random_words(40, "streams", 0).split()) == 40


def test_unshared_prompts_have_their_length_and_different_first_words() -> None:
    prompts = unshared_prompts(16, 40, "streams", 2)
    assert {len(prompt.split()) for prompt in prompts} == {40}
    assert len({prompt.split()[0] for prompt in prompts}) == 16


# -- reading replies ------------------------------------------------------------------------


def test_a_chat_stream_gives_text_counts_and_the_time_of_each_piece() -> None:
    found = read_generation(0.5, timed(STREAM))
    assert found.text == "Helloé"
    assert found.times_s == (2.0, 3.0, 3.0)  # the role's empty event is no token
    assert (found.n_prompt, found.n_cached, found.n_completion) == (9, 4, 3)
    assert found.ttft_s == 1.5
    assert found.tokens_per_s == 2.0


def test_a_text_completion_is_read_alike_and_timings_stand_in_for_cached_tokens() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    pieces = [
        HEAD + event({"choices": [{"index": 0, "text": "a"}]}),
        event({"choices": [{"index": 0, "text": "b"}], "timings": {"cache_n": 7}, "usage": usage}),
        event("[DONE]") + b"0\r\n\r\n",
    ]
    found = read_generation(0.0, timed(pieces))
    assert (found.text, found.times_s, found.n_cached) == ("ab", (1.0, 2.0), 7)


@given(st.lists(st.integers(0, len(b"".join(STREAM))), max_size=12))
def test_text_is_the_same_however_the_network_cuts_the_bytes(cuts: list[int]) -> None:
    whole = b"".join(STREAM)
    edges = [0, *sorted(cuts), len(whole)]
    pieces = [whole[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    found = read_generation(0.0, timed(pieces))
    assert (found.text, found.n_completion) == ("Helloé", 3)
    assert list(found.times_s) == sorted(found.times_s)


def test_a_body_without_chunks_is_read_too() -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    reply = parse_reply(timed([head[:20], head[20:] + b"data: a\n\n", b"data: b\n\n"]))
    assert sse_events(reply.body) == [(2.0, "a"), (3.0, "b")]


def test_comments_and_carriage_returns_are_no_data_and_lines_of_one_event_join() -> None:
    lines = b": keep-alive\r\n\r\ndata: one\r\ndata: two\r\n\r\ndata:three\n\n"
    assert sse_events([(1.0, lines)]) == [(1.0, "one\ntwo"), (1.0, "three")]


def test_a_stream_cut_short_is_an_error_unless_only_the_times_are_wanted() -> None:
    cut = timed(STREAM[:2])
    with pytest.raises(BenchError, match="cut short"):
        read_generation(0.0, cut)
    assert text_times(cut) == [2.0]
    with pytest.raises(BenchError, match="cut short in its head"):
        parse_reply(timed([HEAD[:30]]))


def test_error_statuses_and_error_events_say_what_the_server_said() -> None:
    refused = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 8\r\n\r\ntoo long"
    with pytest.raises(BenchError, match="400: too long"):
        read_generation(0.0, timed([refused]))
    failed = [HEAD + event({"error": {"message": "no memory"}}) + b"0\r\n\r\n"]
    with pytest.raises(BenchError, match="no memory"):
        read_generation(0.0, timed(failed))


def test_a_stream_without_usage_is_refused_since_tokens_could_not_be_counted() -> None:
    pieces = [HEAD + event(chat_delta(content="a")) + event("[DONE]") + b"0\r\n\r\n"]
    with pytest.raises(BenchError, match="without usage"):
        read_generation(0.0, timed(pieces))


def test_chunk_extensions_are_skipped() -> None:
    assert dechunk([(1.0, b"3;x=y\r\nabc\r\n0\r\n\r\n")]) == [(1.0, b"abc")]


# -- sockets --------------------------------------------------------------------------------


def test_streams_polls_and_leaving_over_a_real_socket() -> None:
    async def scenario() -> None:
        left = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            request = await reader.readuntil(b"\r\n\r\n")
            if request.startswith(b"GET"):
                assert b"Connection: keep-alive" in request
                for body in (b"one", b"two"):  # both on the same connection
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n" + body)
                    if body == b"one":
                        await reader.readuntil(b"\r\n\r\n")
                return
            for piece in STREAM:
                writer.write(piece)
                await writer.drain()
            if b"/stays" in request:
                assert b"Connection: close" in request
                assert await reader.readexactly(15) == b'{"stream": 1.5}'
                await reader.read()
                left.set()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])

        exchange = await send(address, "/v1/chat/completions", {})
        await exchange.wait_closed()
        assert read_generation(exchange.sent_s, exchange.arrivals).text == "Helloé"
        with pytest.raises(BenchError, match="ended after 6 events"):
            await exchange.wait_events(7)

        exchange = await send(address, "/stays", {"stream": 1.5})
        await exchange.wait_events(3)
        assert not exchange.closed
        exchange.leave()
        await left.wait()  # the server saw the socket close

        poller = Poller(address)
        assert await poller.get("/a") == (200, b"one")
        assert await poller.get("/b") == (200, b"two")
        poller.close()
        server.close()
        await server.wait_closed()
        with pytest.raises(BenchError, match=str(address.port)):
            await send(address, "/")

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_requests_start_in_their_order_so_many_at_a_time() -> None:
    started: list[int] = []
    running, most = 0, 0

    async def request(index: int) -> Generation:
        nonlocal running, most
        started.append(index)
        running, most = running + 1, max(most, running + 1)
        for _ in range(10 - index):  # the later, the sooner done
            await asyncio.sleep(0)
        running -= 1
        return generation(float(index), index + 1.0)

    found = asyncio.run(at_once([partial(request, index) for index in range(7)], 3))
    assert started == [0, 1, 2, 3, 4, 5, 6]
    assert [g.sent_s for g in found] == [0, 1, 2, 3, 4, 5, 6]
    assert most == 3


def test_wall_time_goes_from_the_first_request_to_the_last_token() -> None:
    assert wall_s([generation(2.0, 3.0, 9.0), generation(1.0, 4.0)]) == 8.0


# -- results --------------------------------------------------------------------------------


def test_a_target_holds_at_its_limit() -> None:
    assert Target("≥", 0.95).holds(0.95) and not Target("≥", 0.95).holds(0.949)
    assert Target("≤", 4).holds(4.0) and not Target("≤", 4).holds(4.01)
    assert str(Target("≤", 80, "MB")) == "≤ 80 MB"


def test_the_table_has_units_ratio_target_and_verdict() -> None:
    rows = [
        Row("1 stream", "tok/s", 121.6, "bare loop", 124.0, 0.98, Target("≥", 0.95)),
        Row("memory", "MB", 612.0, "peer", 512.0, 100.0, Target("≤", 80, "MB")),
        Row("8 streams | sampled", "tok/s", 9.5, "peer", 9.0, 1.0556),
    ]
    assert table(rows).splitlines() == [
        "| measure | ferrum-local | against | its figure | compared | target |  |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| 1 stream | 122 tok/s | bare loop | 124 tok/s | 0.98 | ≥ 0.95 | pass |",
        "| memory | 612 MB | peer | 512 MB | 100 MB | ≤ 80 MB | **miss** |",
        "| 8 streams \\| sampled | 9.50 tok/s | peer | 9.00 tok/s | 1.06 |  |  |",
    ]
    assert fact_list({"model": "m.gguf", "sizes": "8"}) == "- model: m.gguf\n- sizes: 8"


def test_numbers_have_three_digits_and_no_exponent() -> None:
    assert [number(v) for v in (0.0, 0.954, 12.34, 345.6, 123456.0)] == [
        "0.00", "0.95", "12.3", "346", "123456",
    ]  # fmt: skip


def test_prometheus_samples_of_all_models_add_up() -> None:
    text = (
        "# HELP ferrum_steps_total Decode steps.\n"
        'ferrum_steps_total{model="a"} 3.0\nferrum_steps_total{model="b c"} 4.0\n'
        'ferrum_steps_created{model="a"} 1.7e+09\n'
    )
    assert read_series(text, "ferrum_steps_total{") == 7.0


# -- command line ---------------------------------------------------------------------------


def test_scenarios_run_in_their_own_order_and_unknown_ones_are_named() -> None:
    assert bench_llm.scenario_names("shared,start") == ["start", "shared"]
    with pytest.raises(argparse.ArgumentTypeError, match="'nope' is none of start,single"):
        bench_llm.scenario_names("single,nope")


def test_peers_are_name_and_command() -> None:
    command = "llama-server -m {model} --flag=x"
    assert bench_llm.named(f"native={command}") == ("native", command)
    with pytest.raises(argparse.ArgumentTypeError, match="is not NAME=VALUE"):
        bench_llm.named("http://127.0.0.1:8080")


def test_two_peers_of_one_name_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_llm.parse_arguments(["--peer", "a=http://x", "--peer-cmd", "a=true"])
    assert "names of their own" in capsys.readouterr().err
