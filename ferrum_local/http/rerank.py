"""``POST /v1/rerank``, in the shape of Jina and Cohere, and in that of TEI."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from flask import Blueprint, Response
from msgspec import UNSET, Meta, UnsetType

from ferrum_local.http.bodies import json_response, read_json_body
from ferrum_local.http.openai.schemas.embeddings import PromptUsage
from ferrum_local.http.openai.validation import invalid, parse_request
from ferrum_local.http.openapi import documented
from ferrum_local.http.scoring import ScoringCall, admitted, run
from ferrum_local.http.state import state
from ferrum_local.types import RerankRequest, RerankResponse

MAX_DOCUMENTS = 1000  # as Cohere
METHOD_HEADER = "X-Rerank-Method"

blueprint = Blueprint("rerank", __name__)


class RerankDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    noun: ClassVar[str] = "object"

    text: str


class RerankBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``documents`` is Jina's and Cohere's field, ``texts`` TEI's; it decides the reply's shape.

    ``truncate``: cut documents that are too long instead of refusing them.
    """

    query: str
    documents: Annotated[list[str | RerankDocument], Meta(min_length=1)] | None = None
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None
    texts: Annotated[list[str], Meta(min_length=1)] | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None
    truncate: bool | None = None
    user: str | None = None


class RerankResult(msgspec.Struct, kw_only=True, frozen=True):
    """``index`` is the document's place in the request."""

    index: int
    relevance_score: float
    document: RerankDocument | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET


class RerankReply(msgspec.Struct, kw_only=True, frozen=True):
    """Best first. ``method`` says what the scores are: probabilities or cosines."""

    id: str
    object: Literal["list"] = "list"
    model: str
    method: Literal["cross-encoder", "embedding-similarity"]
    results: list[RerankResult]
    usage: PromptUsage


class TeiRank(msgspec.Struct, kw_only=True, frozen=True):
    index: int
    score: float
    text: str | UnsetType = UNSET


@blueprint.post("/v1/rerank")
@blueprint.post("/v2/rerank", endpoint="rerank_v2")
@blueprint.post("/rerank", endpoint="rerank_short")
@documented(
    summary="Order documents by how well they answer a query",
    request=RerankBody,
    response=RerankReply | list[TeiRank],
)
def rerank() -> Response:
    fields = parse_request(read_json_body(), RerankBody)
    documents = documents_of(fields)
    call = ScoringCall.of_current_request("rerank", fields.model, "rerank")
    request = RerankRequest(
        id=call.id,
        model_id=call.model_id,
        query=fields.query,
        documents=documents,
        param="documents" if fields.texts is None else "texts",
        truncate=bool(fields.truncate),
        is_crowded=call.is_crowded,
        created_at=call.created_at,
        deadline_s=call.deadline_s,
        metadata=call.metadata,
    )
    with admitted(call) as is_gone:
        ranked = run(call, lambda: state().engine.rerank(request, is_abandoned=is_gone))
    shape = _tei_reply if fields.documents is None else _reply
    response = json_response(shape(call, fields, documents, ranked))
    response.headers[METHOD_HEADER] = ranked.method
    return response


def documents_of(fields: RerankBody) -> tuple[str, ...]:
    """The documents' texts.

    :raises ApiError: 400 for none, two lists, a field of the other shape, an empty text or
        query, or one document too many.
    """
    name, other = ("documents", "texts") if fields.documents is not None else ("texts", "documents")
    if not fields.query:
        raise invalid("query", "expected a text, got an empty string")
    given = fields.documents if fields.documents is not None else fields.texts
    if given is None:
        raise invalid("documents", "required, but missing", code="missing_required_parameter")
    if fields.documents is not None and fields.texts is not None:
        raise invalid("texts", "not possible together with documents, which means the same")
    misplaced = ("return_text", "raw_scores") if name == "documents" else ("return_documents",)
    for field in misplaced:
        if getattr(fields, field) is not None:
            raise invalid(field, f"goes with {other}; this request has {name}")
    if len(given) > MAX_DOCUMENTS:
        raise invalid(name, f"expected at most {MAX_DOCUMENTS} documents, got {len(given)}")
    texts = tuple(d.text if isinstance(d, RerankDocument) else d for d in given)
    for i, text in enumerate(texts):
        if not text:
            raise invalid(f"{name}[{i}]", "expected a text, got an empty string")
    return texts


def _order(scores: tuple[float, ...], top_n: int | None) -> list[int]:
    """Indexes, best score first; equal ones as they came."""
    return sorted(range(len(scores)), key=lambda i: -scores[i])[:top_n]


def _reply(
    call: ScoringCall, fields: RerankBody, documents: tuple[str, ...], ranked: RerankResponse
) -> RerankReply:
    return RerankReply(
        id=call.id,
        model=ranked.model_id,
        method=ranked.method,
        results=[
            RerankResult(
                index=i,
                relevance_score=ranked.scores[i],
                document=RerankDocument(text=documents[i]) if fields.return_documents else UNSET,
                truncated=True if i in ranked.truncated else UNSET,
            )
            for i in _order(ranked.scores, fields.top_n)
        ],
        usage=PromptUsage(prompt_tokens=ranked.prompt_tokens, total_tokens=ranked.prompt_tokens),
    )


def _tei_reply(
    _call: ScoringCall, fields: RerankBody, documents: tuple[str, ...], ranked: RerankResponse
) -> list[TeiRank]:
    scores = ranked.raw_scores if fields.raw_scores else ranked.scores
    return [
        TeiRank(index=i, score=scores[i], text=documents[i] if fields.return_text else UNSET)
        for i in _order(scores, fields.top_n)
    ]
