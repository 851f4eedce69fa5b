"""/tokenize, /detokenize and /v1/models: what a client may ask without generating anything."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from surefoot.server.errors import invalid
from surefoot.server.fields import TokenId, optional
from surefoot.server.generating import RESPONSES, check_model, off_loop, unknown_model
from surefoot.server.messages import Message, Tools, for_template
from surefoot.server.service import Service, service
from surefoot.server.strict import Strict

router = APIRouter()

_OF_MESSAGES = ("add_generation_prompt", "tools")

Served = Annotated[Service, Depends(service)]


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: RESPONSES[status] for status in statuses}


class TokenizeBody(Strict):
    """A text, or a conversation as the model's chat template lays it out."""

    model: str | None = optional("A name that `/v1/models` lists. Default: the first of them.")
    prompt: str | None = optional("A text; this or `messages`.")
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = optional(
        "A conversation."
    )
    add_special_tokens: bool | None = optional(
        "Whether to put the tokens around that the model wants around a text. Default: true with `prompt`, "
        "false with `messages`, whose template spells them out."
    )
    add_generation_prompt: bool | None = optional(
        "Whether the beginning of an answer comes last; only with `messages`. Default true."
    )
    tools: Tools | None = optional("Functions that the model is told of; only with `messages`.")
    return_token_strs: bool | None = optional("Whether to give the tokens as the vocabulary spells them.")

    @property
    def size(self) -> int:
        """Characters of its texts."""
        return len(self.prompt or "") + sum(message.size for message in self.messages or ())

    def check(self) -> None:
        """Raises ApiError for fields that don't go together."""
        if (self.prompt is None) == (self.messages is None):
            given = "both are given" if self.messages else "it is missing"
            raise invalid(f"prompt: {given}; send either prompt or messages")
        for name in _OF_MESSAGES:
            if self.messages is None and getattr(self, name) is not None:
                raise invalid(f"{name}: given with prompt; it goes with messages")


class DetokenizeBody(Strict):
    model: str | None = optional("A name that `/v1/models` lists. Default: the first of them.")
    tokens: list[TokenId] = Field(description="Token ids.", fail_fast=True)


class Tokens(TypedDict):
    """max_model_len: of prompt and output together, in tokens. token_strs: None where they weren't asked for;
    in it, an id that stands for nothing is None."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None


class Text(TypedDict):
    prompt: str


class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class Models(TypedDict):
    object: Literal["list"]
    data: list[Model]


@router.post("/tokenize", responses=_errors(400, 401, 404, 408, 413, 500))
async def tokenize(body: TokenizeBody, served: Served) -> Tokens:
    """The tokens of a text or of a conversation."""
    check_model(body, served)
    body.check()
    return await off_loop(body.size, lambda: _tokens(body, served))


def _tokens(body: TokenizeBody, served: Service) -> Tokens:
    if body.messages is None:
        text, special = body.prompt or "", True
    else:
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
        prompted = body.add_generation_prompt is not False
        text = served.tokenizer.apply_chat(for_template(body.messages), prompted, tools or None)
        special = False
    if body.add_special_tokens is not None:
        special = body.add_special_tokens
    ids = served.tokenizer.encode(text, add_special=special)
    return Tokens(
        count=len(ids),
        max_model_len=served.max_length,
        tokens=ids,
        token_strs=list(map(served.tokenizer.token_text, ids)) if body.return_token_strs else None,
    )


@router.post("/detokenize", responses=_errors(400, 401, 404, 408, 413, 500))
async def detokenize(body: DetokenizeBody, served: Served) -> Text:
    """The text of some tokens, special ones spelled out."""
    check_model(body, served)
    last = served.tokenizer.vocab_size - 1
    for place, token in enumerate(body.tokens):
        if token > last:
            raise invalid(f"tokens[{place}]: {token} is out of range; allowed is [0, {last}]")
    return await off_loop(
        len(body.tokens), lambda: Text(prompt=served.tokenizer.decode(body.tokens, skip_special=False))
    )


@router.get("/v1/models", responses=_errors(401, 500))
async def models(served: Served) -> Models:
    """The names of the one model that is served."""
    return Models(object="list", data=[_model(name, served) for name in served.names])


@router.get("/v1/models/{name:path}", responses=_errors(401, 404, 500))
async def model(name: str, served: Served) -> Model:
    """The model, by one of its names."""
    if name not in served.names:
        raise unknown_model(name, served)
    return _model(name, served)


def _model(name: str, served: Service) -> Model:
    return Model(
        id=name,
        object="model",
        created=served.created,
        owned_by="surefoot",
        max_model_len=served.max_length,
    )
