"""``POST /v1/chat/completions``."""

from __future__ import annotations

from flask import Blueprint, Response

from ferrum_local.http.bodies import read_json_body
from ferrum_local.http.openai.audio_input import with_audio_as_text
from ferrum_local.http.openai.call import new_call
from ferrum_local.http.openai.chunks import ChatChunks
from ferrum_local.http.openai.constraints import constraint_of
from ferrum_local.http.openai.generation import answer
from ferrum_local.http.openai.messages import joined_text, normalise
from ferrum_local.http.openai.reasoning import reasoning_options
from ferrum_local.http.openai.responses import chat_completion
from ferrum_local.http.openai.sampling_fields import chat_sampling
from ferrum_local.http.openai.schemas import ChatChunk, ChatCompletion, ChatCompletionRequest
from ferrum_local.http.openai.spoken_chat import spoken_answer, wanted_audio
from ferrum_local.http.openai.tools import tool_options
from ferrum_local.http.openai.validation import parse_request
from ferrum_local.http.openapi import documented
from ferrum_local.http.state import state
from ferrum_local.types import ChatPrompt

blueprint = Blueprint("openai_chat", __name__)


@blueprint.post("/v1/chat/completions")
@documented(
    summary="Answer a conversation",
    request=ChatCompletionRequest,
    response=ChatCompletion,
    stream=ChatChunk,
)
def create_chat_completion() -> Response:
    fields = parse_request(read_json_body(), ChatCompletionRequest)
    tools = tool_options(fields)
    sampling = chat_sampling(fields)
    audio = wanted_audio(fields)
    prediction = None
    if fields.prediction is not None:
        prediction = joined_text(fields.prediction.content, "prediction.content")
    call = new_call(fields, id_prefix="chatcmpl", engine=state().engine, config=state().config)
    constraint = constraint_of(fields)
    # Last, as recordings may have to be written down for it.
    prompt = chat_prompt(fields)
    jobs = call.requests([prompt], sampling, prediction=prediction, constraint=constraint)
    if audio is not None:
        return spoken_answer(call, jobs[0], audio, tools)
    with_logprobs = bool(fields.logprobs)
    return answer(
        call,
        jobs,
        body=lambda responses, usage, timings: chat_completion(
            call.envelope,
            responses[0],
            with_logprobs=with_logprobs,
            legacy_calls=tools.is_legacy,
        ),
        chunks=lambda: ChatChunks(call, n=sampling.n, with_logprobs=with_logprobs, tools=tools),
    )


def chat_prompt(fields: ChatCompletionRequest) -> ChatPrompt:
    """What the engine makes a prompt of.

    :raises ApiError: 400 for messages or tools that cannot be, and recordings that nobody can
        understand.
    """
    tools = tool_options(fields)
    return ChatPrompt(
        messages=normalise(with_audio_as_text(fields.messages)),
        tools=tools.tools,
        tool_choice=tools.tool_choice,
        tool_name=tools.tool_name,
        parallel_tool_calls=tools.parallel,
        reasoning=reasoning_options(fields),
        template_kwargs=fields.chat_template_kwargs or {},
    )
