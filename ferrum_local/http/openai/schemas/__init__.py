"""Typed requests and responses of the OpenAI routes.

They validate what clients send, shape what the server answers and describe both in
``/openapi.json``. None means "the default" for every optional request field.
"""

from __future__ import annotations

from ferrum_local.http.openai.schemas.chat import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionRequest,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatTokenLogprob,
    ChatTopLogprob,
    ContentPart,
    FunctionCall,
    ResponseFormat,
    ResponseMessage,
    ToolCall,
)
from ferrum_local.http.openai.schemas.common import (
    CompletionTokensDetails,
    GenerationFields,
    GrammarObject,
    PromptTokensDetails,
    StreamOptions,
    StructuredOutputs,
    TimingsBody,
    UsageBody,
)
from ferrum_local.http.openai.schemas.completions import (
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from ferrum_local.http.openai.schemas.tools import (
    AnsweredToolCall,
    CalledFunction,
    FunctionDefinition,
    FunctionDelta,
    ToolCallChunk,
    ToolChoice,
    ToolDefinition,
)

__all__ = [
    "AnsweredToolCall",
    "CalledFunction",
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatCompletion",
    "ChatCompletionRequest",
    "ChatDelta",
    "ChatLogprobs",
    "ChatMessage",
    "ChatTokenLogprob",
    "ChatTopLogprob",
    "Completion",
    "CompletionChoice",
    "CompletionChunk",
    "CompletionChunkChoice",
    "CompletionLogprobs",
    "CompletionRequest",
    "CompletionTokensDetails",
    "ContentPart",
    "FunctionCall",
    "FunctionDefinition",
    "FunctionDelta",
    "GenerationFields",
    "GrammarObject",
    "PromptTokensDetails",
    "ResponseFormat",
    "ResponseMessage",
    "StreamOptions",
    "StructuredOutputs",
    "TimingsBody",
    "ToolCall",
    "ToolCallChunk",
    "ToolChoice",
    "ToolDefinition",
    "UsageBody",
]
