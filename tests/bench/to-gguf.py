#!/usr/bin/env python3
"""Writes a Qwen3 folder (config.json, tokenizer.json, tokenizer_config.json, *.safetensors in bf16) as one GGUF file, so that a
program that reads only those can be measured beside Quire: to-gguf.py DIR OUT.gguf. The same weights: bf16 stays bf16,
norms become float32, which changes no bit of them. Needs nothing but Python."""
import glob
import json
import os
import struct
import sys

F32, BF16 = 0, 30
ALIGN = 32


def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def u32(key, n):
    return text(key) + struct.pack("<II", 4, n)


def f32(key, x):
    return text(key) + struct.pack("<If", 6, x)


def yes_no(key, b):
    return text(key) + struct.pack("<IB", 7, b)


def string(key, s):
    return text(key) + struct.pack("<I", 8) + text(s)


def strings(key, values):
    return text(key) + struct.pack("<IIQ", 9, 8, len(values)) + b"".join(text(v) for v in values)


def ints(key, values):
    return text(key) + struct.pack("<IIQ", 9, 5, len(values)) + struct.pack(f"<{len(values)}i", *values)


def tensors_of(folder):
    """name -> (shape, bytes of bf16)."""
    out = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        with open(path, "rb") as f:
            n = struct.unpack("<Q", f.read(8))[0]
            head = json.loads(f.read(n))
            for name, t in head.items():
                if name == "__metadata__":
                    continue
                assert t["dtype"] == "BF16", f"{name} is {t['dtype']}"
                begin, end = t["data_offsets"]
                f.seek(8 + n + begin)
                out[name] = (t["shape"], f.read(end - begin))
    return out


PARTS = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
ENDS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def gguf_name(name):
    if name in ENDS:
        return ENDS[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{PARTS[rest.removesuffix('.weight')]}.weight"


def vocabulary(folder, config):
    with open(os.path.join(folder, "tokenizer.json")) as f:
        t = json.load(f)
    with open(os.path.join(folder, "tokenizer_config.json")) as f:
        more = json.load(f)
    n = config["vocab_size"]
    tokens, kinds = [f"[PAD{i}]" for i in range(n)], [5] * n  # 5: unused
    for token, i in t["model"]["vocab"].items():
        tokens[i], kinds[i] = token, 1
    for a in t["added_tokens"]:
        tokens[a["id"]], kinds[a["id"]] = a["content"], 3 if a["special"] else 4
    merges = [m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]]
    eos = config["eos_token_id"]
    return [string("tokenizer.ggml.model", "gpt2"), string("tokenizer.ggml.pre", "qwen2"), strings("tokenizer.ggml.tokens", tokens),
            ints("tokenizer.ggml.token_type", kinds), strings("tokenizer.ggml.merges", merges),
            u32("tokenizer.ggml.eos_token_id", eos[0] if isinstance(eos, list) else eos), u32("tokenizer.ggml.padding_token_id", config["bos_token_id"]),
            yes_no("tokenizer.ggml.add_bos_token", False), string("tokenizer.chat_template", more["chat_template"])]


def main(folder, out):
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    tensors = tensors_of(folder)
    if c["tie_word_embeddings"]:
        tensors.pop("lm_head.weight", None)
    p = "qwen3."
    facts = [string("general.architecture", "qwen3"), string("general.name", os.path.basename(os.path.abspath(folder))), u32("general.file_type", 32),
             u32(p + "block_count", c["num_hidden_layers"]), u32(p + "context_length", c["max_position_embeddings"]),
             u32(p + "embedding_length", c["hidden_size"]), u32(p + "feed_forward_length", c["intermediate_size"]),
             u32(p + "attention.head_count", c["num_attention_heads"]), u32(p + "attention.head_count_kv", c["num_key_value_heads"]),
             u32(p + "attention.key_length", c["head_dim"]), u32(p + "attention.value_length", c["head_dim"]),
             f32(p + "attention.layer_norm_rms_epsilon", c["rms_norm_eps"]), f32(p + "rope.freq_base", c["rope_theta"]),
             *vocabulary(folder, c)]
    heads, data, at = [], [], 0
    for name, (shape, b) in tensors.items():
        kind = BF16
        if len(shape) == 1:  # bf16 is the upper half of float32
            kind, b = F32, b"".join(b"\0\0" + b[i:i + 2] for i in range(0, len(b), 2))
        heads.append(text(gguf_name(name)) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, at))
        b += bytes(-len(b) % ALIGN)
        data.append(b)
        at += len(b)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(heads), len(facts)) + b"".join(facts) + b"".join(heads)
    with open(out, "wb") as f:
        f.write(head + bytes(-len(head) % ALIGN))
        f.writelines(data)


if len(sys.argv) != 3:
    sys.exit(__doc__)
main(*sys.argv[1:])
