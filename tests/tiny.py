"""Small random models of every family, as a folder of safetensors and as GGUF: the same weights in both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers.models import BPE

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ENDOFTEXT, IM_START, IM_END = range(3)
VOCAB = 320  # 3 special tokens, 256 bytes, a few merges, the rest padding
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": ENDOFTEXT,
    "eos_token_id": IM_END,
    "pad_token_id": ENDOFTEXT,
}
_OWN: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True, "rms_norm_eps": 1e-5},
    "mistral": {"sliding_window": 8},
    "qwen2": {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
    "qwen3": {"head_dim": 32, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
    "gemma3": {"head_dim": 32, "sliding_window": 8, "num_hidden_layers": 7, "query_pre_attn_scalar": 32},
}
_CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma3": "Gemma3"}


def tiny_model(family: str, **changes: Any) -> Any:
    """A random transformers model, float32; `changes` go into its configuration."""
    import transformers

    text = "Text" if family == "gemma3" else ""
    config_class = getattr(transformers, f"{_CLASSES[family]}{text}Config")
    config = config_class(**{**_SIZES, **_OWN[family], **changes})
    model = getattr(transformers, f"{_CLASSES[family]}ForCausalLM")(config).float().eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith("norm.weight"):
                weight.copy_(0.2 * noise + (0.0 if family == "gemma3" else 1.0))
            else:
                weight.copy_(0.15 * noise)
    return model


def tiny_tokenizer() -> tokenizers.Tokenizer:
    """Byte-level BPE with a few merges; the ids from 263 to `VOCAB` are padding."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "t")]
    texts = [*SPECIALS, *alphabet, *(left + right for left, right in merges)]
    tokenizer = tokenizers.Tokenizer(BPE({text: token for token, text in enumerate(texts)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIALS])
    return tokenizer


def tiny_checkpoint_folder(family: str, folder: Path, **changes: Any) -> Path:
    """A model of `tiny_model`, saved with `tiny_tokenizer` and a chat template. Returns its folder."""
    path = folder / f"tiny-{family}"
    tiny_model(family, **changes).save_pretrained(path)
    tiny_tokenizer().save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return path


def tiny_gguf(
    family: str,
    path: Path,
    kind: str = "F32",
    edit: Callable[[gguf.GGUFWriter], object] | None = None,
    **changes: Any,
) -> Path:
    """The same model as one GGUF file, matrices stored as `kind`. Returns `path`.

    edit: gets the writer before it writes, to add or replace what a test is about.
    """
    model = tiny_model(family, **changes)
    writer = gguf.GGUFWriter(path, "llama" if family == "mistral" else family)
    add_gguf_settings(writer, model.config, family)
    add_gguf_tokenizer(writer)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        array = gguf_array(name, weight.numpy(), model.config, family)
        stored = gguf.GGMLQuantizationType[kind if array.ndim > 1 else "F32"]
        data = gguf.quantize(array, stored)
        writer.add_tensor(gguf_name(name, family), data, raw_dtype=stored)
    if edit:
        edit(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_gguf_settings(writer: gguf.GGUFWriter, config: Any, family: str) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if family in ("qwen3", "gemma3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if family in ("mistral", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    if family != "gemma3":
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def add_gguf_tokenizer(writer: gguf.GGUFWriter) -> None:
    texts = [text for text, _ in sorted(tiny_tokenizer().get_vocab().items(), key=lambda item: item[1])]
    padding = [f"[PAD{token}]" for token in range(len(texts), VOCAB)]
    kinds = [3] * len(SPECIALS) + [1] * (len(texts) - len(SPECIALS)) + [5] * len(padding)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*texts, *padding])
    writer.add_token_types(kinds)
    writer.add_token_merges(["h e", "l l", "he ll", "Ġ t"])
    writer.add_bos_token_id(ENDOFTEXT)
    writer.add_eos_token_id(IM_END)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def gguf_name(name: str, family: str) -> str:
    """transformers' name of a tensor → GGUF's."""
    replacements = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "post_attention_norm" if family == "gemma3" else "ffn_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
    for theirs, ours in replacements.items():
        name = name.replace(f"{theirs}.", f"{ours}.")
    return name


def gguf_array(name: str, array: NDArray[np.float32], config: Any, family: str) -> NDArray[np.float32]:
    """A tensor as GGUF stores it: llama's rotated halves interleaved, Gemma's norms with one added."""
    if family == "gemma3" and name.endswith("norm.weight"):
        return array + 1
    if family in ("llama", "mistral") and (".q_proj." in name or ".k_proj." in name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        halves = array.reshape(heads, 2, array.shape[0] // heads // 2, -1)
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
    return array
