"""/tokenize, /detokenize and /v1/models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api import Api, serving
from tests.serving import CONTEXT, IM_END, IM_START, NAME, VOCAB_SIZE, byte_tokenizer

WITH_TOOLS = (
    "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)
TOOLS = [{"type": "function", "function": {"name": "ping"}}]
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with serving(tokenizer=byte_tokenizer(WITH_TOOLS)) as running:
        yield running


def text_of(api: Api, **body: object) -> str:
    tokens = api.ask("/tokenize", **body)["tokens"]
    found: str = api.ask("/detokenize", tokens=tokens)["prompt"]
    return found


def test_a_text_becomes_tokens(api: Api) -> None:
    assert api.ask("/tokenize", prompt="Hé") == {
        "count": 3,
        "max_model_len": CONTEXT,
        "tokens": list("Hé".encode()),
        "token_strs": None,
    }
    assert api.ask("/tokenize", prompt="")["tokens"] == []


def test_tokens_as_the_vocabulary_spells_them(api: Api) -> None:
    answer = api.ask("/tokenize", prompt="a b<|im_end|>", return_token_strs=True, model=NAME)
    assert answer["token_strs"] == ["a", "Ġ", "b", "<|im_end|>"]
    assert answer["tokens"][-1] == IM_END


def test_a_conversation_becomes_tokens(api: Api) -> None:
    begins = "<|im_start|>user:Hi<|im_end|>"
    assert text_of(api, messages=HI) == f"{begins}<|im_start|>assistant"
    assert text_of(api, messages=HI, add_generation_prompt=False) == begins
    assert text_of(api, messages=HI, tools=TOOLS) == f"ping;{begins}<|im_start|>assistant"
    parts = [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}]
    assert text_of(api, messages=parts) == text_of(api, messages=HI)


def test_a_conversation_counts_as_a_prompt_of_chat_does(api: Api) -> None:
    answer = api.ask("/v1/chat/completions", messages=HI, max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == api.ask("/tokenize", messages=HI)["count"]
    answer = api.ask("/v1/completions", prompt="Hi", max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == api.ask("/tokenize", prompt="Hi")["count"]


def test_special_tokens_are_put_around_when_the_model_wants_them() -> None:
    with serving(tokenizer=byte_tokenizer(WITH_TOOLS, prefix=(IM_START,))) as api:
        assert api.ask("/tokenize", prompt="x")["tokens"] == [IM_START, ord("x")]
        assert api.ask("/tokenize", prompt="x", add_special_tokens=False)["tokens"] == [ord("x")]
        plain = api.ask("/tokenize", messages=HI, tools=TOOLS)["tokens"]
        assert plain[0] == ord("p")
        around = api.ask("/tokenize", messages=HI, tools=TOOLS, add_special_tokens=True)["tokens"]
        assert around == [IM_START, *plain]


@pytest.mark.parametrize("tokens", [[], [0], [IM_START, *"né".encode(), IM_END], [0xC3]])
def test_tokens_become_a_text(api: Api, tokens: list[int]) -> None:
    expected = api.tokenizer.decode(tokens, skip_special=False)
    assert api.ask("/detokenize", tokens=tokens, model=NAME) == {"prompt": expected}


def test_a_long_text_too(api: Api) -> None:
    text = "word " * 5000
    assert text_of(api, prompt=text) == text


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/tokenize", {}, "prompt: it is missing; send either prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt: both are given; send either"),
        ("/tokenize", {"prompt": "a", "tools": TOOLS}, "tools: given with prompt; it goes with messages"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt: given with"),
        ("/tokenize", {"prompt": 1}, "prompt: 1 is not a string"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": "yes"}, "add_special_tokens: .* is not true or"),
        ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs: 1 is not true or false"),
        ("/tokenize", {"prompt": "a", "text": "b"}, "text: this field is unknown"),
        ("/tokenize", {"messages": []}, r"messages: \[\] is too short"),
        ("/tokenize", {"messages": [{"role": "x"}]}, r"messages\[0\]: .* has no role that is known"),
        ("/tokenize", {"messages": HI, "tools": [{}]}, r"tools\[0\]\.type: it is missing"),
        ("/detokenize", {}, "tokens: it is missing"),
        ("/detokenize", {"tokens": [0, VOCAB_SIZE]}, rf"tokens\[1\]: {VOCAB_SIZE} is out of range; allowed"),
        ("/detokenize", {"tokens": [-1]}, r"tokens\[0\]: -1 is out of range; allowed is 0 or more"),
        ("/detokenize", {"tokens": [1.5]}, r"tokens\[0\]: 1\.5 is not a whole number"),
        ("/detokenize", {"tokens": [True]}, r"tokens\[0\]: true is not a whole number"),
        ("/detokenize", {"tokens": "abc"}, 'tokens: "abc" is not a list'),
    ],
)
def test_a_mistake_names_its_field(api: Api, path: str, body: dict[str, object], says: str) -> None:
    response = api.post(path, **body)
    assert response.status_code == 400
    error = response.json()["error"]
    with pytest.raises(ValueError, match=f"^{says}"):
        raise ValueError(error["message"])
    assert error["param"] == error["message"].partition(":")[0]


def test_a_template_that_knows_no_tools_says_so() -> None:
    with serving() as api:
        assert "knows no tools" in api.refusal("/tokenize", messages=HI, tools=TOOLS)


def test_the_names_of_the_model(api: Api) -> None:
    listed = api.client.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == [NAME]
    assert listed["data"][0] == api.client.get(f"/v1/models/{NAME}").json()
    assert listed["data"][0] == {
        "id": NAME,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "surefoot",
        "max_model_len": CONTEXT,
    }
    client = api.openai()
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by == "surefoot"


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/models/org/other"])
def test_a_model_that_is_not_served_is_not_found(api: Api, path: str) -> None:
    given = {"prompt": "a"} if path == "/tokenize" else {"tokens": [1]}
    body = {"model": "org/other", **given}
    response = api.client.get(path) if "models" in path else api.post(path, **body)
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["message"] == f"model: 'org/other' is unknown; allowed is {NAME}"
    assert (error["type"], error["param"]) == ("not_found_error", "model")
