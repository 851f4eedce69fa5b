"""Text in and out: encoding, incremental decoding, chat templates, and which tokenizers are the same."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, normalizers
from tokenizers.models import BPE

from surefoot.chat import ChatTemplate
from surefoot.models.load import open_checkpoint
from surefoot.models.tokenizer_parts import SPACE, TokenizerParts
from surefoot.text import Detokenizer, Tokenizer, load_tokenizer, same_tokenizer
from surefoot.types import SurefootError
from tests.models_fixture import smollm2_path
from tests.tiny import CHAT_TEMPLATE, IM_END, IM_START, tiny_checkpoint_folder, tiny_gguf, tiny_tokenizer

TINY = TokenizerParts(tiny_tokenizer(), "bytes", prefix=(0,), eos_ids=(IM_END,), template=CHAT_TEMPLATE)
HARD_TEXTS = (
    "",
    " ",
    "Hello  world\n\n\tTabs, and    runs ",
    "naïve e\u0301 ﬁ ½ ² Ⅷ ١٢٣ 12345",
    "日本語 中文 한국어 हिन्दी ไทย עברית",
    "🎉👩‍👩‍👧‍👦🇩🇪 \u200b\ufeff\u00a0",
    "def f(x):\r\n    return x[1:] + '''{}'''  # done\x00\x7f",
    "<|im_start|>user\nI'm YOU'LL<|im_end|>\n",
)


def spaced_parts(*, add_space: bool) -> TokenizerParts:
    """A SentencePiece-like vocabulary: a few letters, every byte, two special tokens."""
    texts = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"ab", SPACE, f"{SPACE}a", "ab", "é"]
    model = BPE(
        {text: token for token, text in enumerate(texts)}, [(SPACE, "a"), ("a", "b")], byte_fallback=True
    )
    backend = tokenizers.Tokenizer(model)
    spaces = [normalizers.Replace(" ", SPACE)]
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), *spaces] if add_space else spaces)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if add_space else steps)
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in texts[:2]])
    return TokenizerParts(backend, "spaces", strip_first_space=add_space, prefix=(0,), eos_ids=(1,))


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_bytes_come_back(text: str) -> None:
    tokenizer = Tokenizer(TINY)
    assert tokenizer.decode(tokenizer.encode(text, add_special=True), skip_special=False) == (
        "<|endoftext|>" + text
    )


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    tokenizer = Tokenizer(TINY)
    ids = tokenizer.encode(text, add_special=False)
    assert tokenizer.decode(ids, skip_special=False) == text
    assert all(token in range(tokenizer.vocab_size) for token in ids)


@pytest.mark.parametrize("add_space", [True, False])
@given(text=st.text(alphabet="ab é漢🎉\n"))
def test_spaces_come_back(add_space: bool, text: str) -> None:
    tokenizer = Tokenizer(spaced_parts(add_space=add_space))
    assert tokenizer.decode(tokenizer.encode(text, add_special=True)) == text


@pytest.mark.parametrize("parts", [TINY, spaced_parts(add_space=True), spaced_parts(add_space=False)])
@given(data=st.data(), skip_special=st.booleans())
@settings(max_examples=300)
def test_pieces_add_up_and_never_break_a_character(
    parts: TokenizerParts, data: st.DataObject, skip_special: bool
) -> None:
    tokenizer = Tokenizer(parts)
    anything = st.integers(-2, tokenizer.vocab_size + 2)
    text_ids = st.text(alphabet="ab é漢🎉").map(lambda text: tokenizer.encode(text, add_special=False))
    chunks = data.draw(st.lists(st.one_of(text_ids, st.lists(anything, max_size=4)), max_size=5))
    ids = [token for chunk in chunks for token in chunk]
    raw = b"".join(tokenizer.token_bytes(t) for t in ids if not (skip_special and tokenizer.is_special(t)))
    whole = (raw.removeprefix(b" ") if parts.strip_first_space else raw).decode(errors="replace")
    detokenizer = Detokenizer(tokenizer, skip_special)
    pieces = [detokenizer.add(token) for token in ids]
    assert "".join(pieces) + detokenizer.finish() == whole == tokenizer.decode(ids, skip_special)


@given(st.text(min_size=1))
def test_half_a_character_is_held_back(text: str) -> None:
    tokenizer = Tokenizer(TINY)
    detokenizer = Detokenizer(tokenizer)
    shown = ""
    for token in tokenizer.encode(text.replace("\ufffd", "?"), add_special=False):
        shown += detokenizer.add(token)
        assert "\ufffd" not in shown
    assert detokenizer.finish() == ""


def test_what_never_becomes_a_character_is_replaced() -> None:
    tokenizer = Tokenizer(TINY)
    party = tokenizer.encode("🎉", add_special=False)
    assert len(party) == 4
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.add(token) for token in party[:3]] == ["", "", ""]
    assert detokenizer.finish() == "\ufffd"
    assert tokenizer.decode([*party[:2], *tokenizer.encode("a", add_special=False)]) == "\ufffda"


@given(st.lists(st.integers(3, 262)))
def test_bytes_decode_as_the_library_decodes_them(ids: list[int]) -> None:
    assert Tokenizer(TINY).decode(ids) == TINY.backend.decode(ids)


def test_special_tokens_are_text_only_when_asked_for() -> None:
    tokenizer = Tokenizer(TINY)
    ids = [IM_START, *tokenizer.encode("hello", add_special=False), IM_END]
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>hello<|im_end|>"
    assert tokenizer.token_text(IM_END) == "<|im_end|>"
    assert tokenizer.token_text(5000) is tokenizer.token_text(-1) is None
    assert tokenizer.decode([-1, 5000]) == ""


def test_a_continuation_keeps_its_space() -> None:
    tokenizer = Tokenizer(spaced_parts(add_space=True))
    ids = tokenizer.encode("a ab", add_special=False)
    prompt, output = ids[:1], ids[1:]
    detokenizer = Detokenizer(tokenizer, continues=True)
    continued = "".join([*map(detokenizer.add, output), detokenizer.finish()])
    assert (tokenizer.decode(prompt), continued, tokenizer.decode(ids)) == ("a", " ab", "a ab")
    assert tokenizer.decode(output) == "ab"


def test_m6_bos_is_not_put_twice_and_text_stays_exact() -> None:
    tokenizer = Tokenizer(TINY)
    text = "two  spaces\nnew line 🎉"
    plain = tokenizer.encode(text, add_special=False)
    assert 0 not in plain
    once = tokenizer.encode(text, add_special=True)
    assert once == [0, *plain]
    for _ in range(5):
        text = tokenizer.decode(once, skip_special=False)
        once = tokenizer.encode(text, add_special=True)
        assert once == [0, *plain]
        assert tokenizer.decode(once) == "two  spaces\nnew line 🎉"
    assert tokenizer.encode("", add_special=True) == [0]
    closed = Tokenizer(dataclasses.replace(TINY, suffix=(IM_END,)))
    assert closed.encode("a", add_special=True) == [0, *closed.encode("a", add_special=False), IM_END]


def test_half_a_character_in_the_input_is_one_line() -> None:
    with pytest.raises(SurefootError, match=r"position 1 holds '\\udcff', half a character; is it UTF-8\?"):
        Tokenizer(TINY).encode("a\udcff", add_special=False)


def padded(parts: TokenizerParts, texts: list[str]) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(parts.backend.to_str())
    backend.add_tokens([AddedToken(text, normalized=False) for text in texts])
    return Tokenizer(dataclasses.replace(parts, backend=backend))


def test_m1_vocabularies_padded_differently_are_the_same(tmp_path: Path) -> None:
    gguf = load_tokenizer(tiny_gguf("llama", tmp_path / "padded.gguf"))  # [PAD263] to [PAD319], unused
    assert gguf.vocab_size == 263
    same_tokenizer(gguf, Tokenizer(TINY))
    same_tokenizer(Tokenizer(TINY), gguf)


def test_m2_permuted_ids_are_another_tokenizer() -> None:
    texts = {text: token for text, token in TINY.backend.get_vocab().items() if len(text) == 1}
    texts["!"], texts['"'] = texts['"'], texts["!"]
    swapped = {**TINY.backend.get_vocab(), **texts}
    backend = tokenizers.Tokenizer(BPE(swapped, []))
    other = Tokenizer(dataclasses.replace(TINY, backend=backend))
    assert other.vocab_size == Tokenizer(TINY).vocab_size
    with pytest.raises(SurefootError, match="differ: token 3 is '!' in the target, '\"' in the draft"):
        same_tokenizer(Tokenizer(TINY), other)


def test_m2_one_other_special_token_is_named() -> None:
    ours, theirs = padded(TINY, ["<tool>", "<a>"]), padded(TINY, ["<tool>", "<b>"])
    with pytest.raises(SurefootError, match="token 264 is '<a>' in the target, '<b>' in the draft"):
        same_tokenizer(ours, theirs)
    with pytest.raises(SurefootError, match="token 263 is '<tool>' in the target, None in the draft"):
        same_tokenizer(ours, Tokenizer(TINY))
    same_tokenizer(ours, padded(TINY, ["<tool>", "<a>"]))


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Hi!\n"},
    {"role": "assistant", "content": "Hello 🎉"},
    {"role": "user", "content": "{{ 1 + 1 }} <|im_end|>"},
]


@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("start", [0, 1])
def test_smollm2_lays_out_a_conversation_as_transformers_does(prompted: bool, start: int) -> None:
    from transformers import PreTrainedTokenizerFast

    checkpoint = open_checkpoint(smollm2_path())
    tokenizer = load_tokenizer(checkpoint)
    template = checkpoint.metadata()["tokenizer.chat_template"]
    theirs = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer(), chat_template=template)
    expected = theirs.apply_chat_template(
        CONVERSATION[start:], tokenize=False, add_generation_prompt=prompted
    )
    assert tokenizer.has_chat_template
    assert tokenizer.apply_chat(CONVERSATION[start:], prompted) == expected
    assert ("You are a helpful AI assistant" in expected) == (start == 1)


def test_the_template_of_a_folder_may_lie_in_three_places(tmp_path: Path) -> None:
    folder = tiny_checkpoint_folder("llama", tmp_path)
    message = [{"role": "user", "content": "Hi"}]
    right = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert load_tokenizer(folder).apply_chat(message) == right
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(SurefootError, match="has no chat template; use --raw"):
        load_tokenizer(folder).apply_chat(message)
    settings = folder / "tokenizer_config.json"
    settings.write_text('{"chat_template": "one {{ bos_token }}", "bos_token": {"content": "<|endoftext|>"}}')
    assert load_tokenizer(folder).apply_chat(message) == "one <|endoftext|>"
    named = [{"name": "x", "template": "no"}, {"name": "default", "template": "two"}]
    settings.write_text(json.dumps({"chat_template": named}))
    assert load_tokenizer(folder).apply_chat(message) == "two"


@pytest.mark.parametrize(
    ("template", "becomes"),
    [
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "é<&>"}'),
        ("{% for m in messages %}\n  {{ m.role }}\n{% endfor %}", "  user\n"),
        ("{% for m in messages %}{% break %}{% endfor %}x", "x"),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}", "user"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ tools is none }}{{ bos_token }}{{ eos_token }}", "True<s></s>"),
        ("{{ missing }}", ""),
    ],
)
def test_templates_have_what_they_expect(template: str, becomes: str) -> None:
    messages = [{"role": "user", "content": "é<&>"}]
    assert ChatTemplate(template, "<s>", "</s>").render(messages, True) == becomes


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses them: roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "refuses them: .*unsafe"),
        ("{{ messages.append(1) }}", "refuses them: .*is unsafe"),
        ("{{ messages[5].role }}", "refuses them: list object has no element 5"),
        ("{{ 1 / 0 }}", "refuses them: division by zero"),
        ("{{ 'é' + 1 }}", "refuses them: can only concatenate"),
        ("{% include '/etc/passwd' %}", "refuses them: no loader"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "refuses them: Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refuses them: maximum recursion"),
    ],
)
def test_a_template_that_fails_is_one_line(template: str, says: str) -> None:
    with pytest.raises(SurefootError, match=says) as caught:
        ChatTemplate(template, "", "", "my.gguf").render([{"role": "user", "content": "x"}], True)
    assert str(caught.value).startswith("messages: the chat template")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("template", ["{% if %}", "{{ x", "{% nonsense %}", "{{ " + "(" * 5000])
def test_a_template_that_is_no_template_is_one_line(template: str) -> None:
    with pytest.raises(SurefootError, match="its chat template is broken"):
        ChatTemplate(template, "", "")
