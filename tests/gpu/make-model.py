#!/usr/bin/env python3
"""Writes a model folder with random weights in which attention matters.

    make-model.py OUT [--shape 4b|small|tiny] [--tokenizer DIR] [--seed N] [--shards N]

4b is Qwen3-4B's shape (8.04 GB in bf16), small has 4 layers of hidden 1024, tiny needs no torch. With torch, norms and
projections are set layer by layer on a random prompt of 1,024 tokens: q_norm and k_norm until the key that a query
likes best holds 0.3 of the mass in the median, o_proj until attention adds a third of the residual, down_proj until the
MLP adds 0.06 of it. With fresh random weights attention would be flat and a lost page would hide below rounding. The
MLP stays small so that the embedding of the last token is still seen after 36 layers: then the best logit stands out,
and two right programs seldom differ in it.

The tokenizer is copied from a folder that has one; its ids may be fewer than the embedding's rows.
"""
import argparse
import json
import os
import random
import shutil
import struct
import time

SHAPES = {
    "4b": dict(layers=36, heads=32, kv_heads=8, head_dim=128, hidden=2560, ffn=9728, vocab=151936, tied=True),
    "small": dict(layers=4, heads=16, kv_heads=8, head_dim=128, hidden=1024, ffn=3072, vocab=16384, tied=True),
    "mini": dict(layers=6, heads=8, kv_heads=2, head_dim=64, hidden=512, ffn=1024, vocab=8192, tied=True),
    "tiny": dict(layers=2, heads=4, kv_heads=2, head_dim=64, hidden=128, ffn=256, vocab=6400, tied=False),
}
EMBED_STD = 0.02
TOP_MASS, ATTENTION, MLP = 0.3, 1 / 3, 0.06
PROMPT = 1024


def config_of(s, seed):
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 6139,
        "eos_token_id": 6141,
        "head_dim": s["head_dim"],
        "hidden_act": "silu",
        "hidden_size": s["hidden"],
        "initializer_range": EMBED_STD,
        "intermediate_size": s["ffn"],
        "max_position_embeddings": 40960,
        "max_window_layers": s["layers"],
        "model_type": "qwen3",
        "num_attention_heads": s["heads"],
        "num_hidden_layers": s["layers"],
        "num_key_value_heads": s["kv_heads"],
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": s["tied"],
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": s["vocab"],
        "quire_random_seed": seed,
    }


def layer_shapes(s):
    q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    return {
        "input_layernorm": [s["hidden"]],
        "self_attn.q_proj": [q, s["hidden"]],
        "self_attn.k_proj": [kv, s["hidden"]],
        "self_attn.v_proj": [kv, s["hidden"]],
        "self_attn.q_norm": [s["head_dim"]],
        "self_attn.k_norm": [s["head_dim"]],
        "self_attn.o_proj": [s["hidden"], q],
        "post_attention_layernorm": [s["hidden"]],
        "mlp.gate_proj": [s["ffn"], s["hidden"]],
        "mlp.up_proj": [s["ffn"], s["hidden"]],
        "mlp.down_proj": [s["hidden"], s["ffn"]],
    }


# ---- safetensors -------------------------------------------------------------------------------------------------


class Writer:
    """One shard: tensors are announced first, then written in that order."""

    def __init__(self, path, tensors):
        header, at = {}, 0
        for name, shape in tensors:
            n = 2
            for d in shape:
                n *= d
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
            at += n
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 64)
        self.left = [name for name, _ in tensors]
        self.bytes = at
        self.file = open(path, "wb")
        self.file.write(struct.pack("<Q", len(text)) + text)

    def put(self, name, data):
        assert name == self.left.pop(0), name
        self.file.write(data)

    def close(self):
        assert not self.left, self.left
        self.file.close()


def groups_of(s, n_shards):
    """Tensors by shard, in the order they are made: the embedding and the rest outside layers first."""
    outside = [("model.embed_tokens.weight", [s["vocab"], s["hidden"]]), ("model.norm.weight", [s["hidden"]])]
    if not s["tied"]:
        outside.append(("lm_head.weight", [s["vocab"], s["hidden"]]))
    groups = [outside] + [[] for _ in range(n_shards - 1)]
    for l in range(s["layers"]):
        group = groups[0] if n_shards == 1 else groups[1 + l * (n_shards - 1) // s["layers"]]
        group += [(f"model.layers.{l}.{name}.weight", shape) for name, shape in layer_shapes(s).items()]
    return groups


def write_folder(out, s, seed, n_shards, tokenizer, tensors):
    """tensors yields (name, bytes) in the order of groups_of()."""
    groups = groups_of(s, n_shards)
    names = ["model.safetensors"]
    if n_shards > 1:
        names = [f"model-{i + 1:05}-of-{n_shards:05}.safetensors" for i in range(n_shards)]
    total, weight_map = 0, {}
    for file, group in zip(names, groups):
        writer = Writer(os.path.join(out, file), group)
        for name, _ in group:
            weight_map[name] = file
            made, data = next(tensors)
            assert made == name, (made, name)
            writer.put(name, data)
        writer.close()
        total += writer.bytes
    if n_shards > 1:
        with open(os.path.join(out, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f, indent=1)
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config_of(s, seed), f, indent=2)
    with open(os.path.join(out, "generation_config.json"), "w") as f:
        json.dump({"do_sample": False, "bos_token_id": 6139, "eos_token_id": [6141, 6139], "pad_token_id": 6139}, f)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(os.path.join(tokenizer, file), os.path.join(out, file))
    return total


# ---- Without torch -----------------------------------------------------------------------------------------------


def plain_tensors(s, seed):
    rng = random.Random(seed)
    for group in groups_of(s, 1):
        for name, shape in group:
            n = 1
            for d in shape:
                n *= d
            if "norm" in name:
                mean, std = (1.5 if "q_norm" in name or "k_norm" in name else 1), 0.1
            elif "embed" in name:
                mean, std = 0, EMBED_STD
            else:
                mean, std = 0, shape[1] ** -0.5
            data = bytearray(2 * n)
            for i in range(n):
                # The upper half of a float32 is its bf16, cut off.
                data[2 * i : 2 * i + 2] = struct.pack("<f", rng.gauss(mean, std))[2:]
            yield name, bytes(data)


# ---- With torch, on the GPU where there is one -------------------------------------------------------------------


class Calibrated:
    def __init__(self, s, seed):
        import torch

        self.t, self.s = torch, s
        self.dev = "cuda" if torch.cuda.is_available() else "cpu"
        self.random = torch.Generator(self.dev)
        self.random.manual_seed(seed)
        torch.backends.cuda.matmul.allow_tf32 = True

    def normal(self, shape, std, mean=0.0):
        x = self.t.empty(shape, device=self.dev, dtype=self.t.float32)
        return x.normal_(mean, std, generator=self.random).to(self.t.bfloat16)

    def rms(self, x, w):
        x = x.float()
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w.float()

    def rope(self, x):
        """x [heads, tokens, dim]"""
        t, d = self.t, x.shape[-1]
        inv = 1e6 ** (-t.arange(0, d, 2, device=self.dev, dtype=t.float64) / d)
        angle = t.arange(x.shape[1], device=self.dev, dtype=t.float64)[:, None] * inv
        cos, sin = angle.cos().float(), angle.sin().float()
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return t.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def heads(self, y, n):
        return y.view(y.shape[0], n, self.s["head_dim"]).transpose(0, 1)

    def median_top(self, scores, scale):
        # Queries with at least 64 keys: the first few have little choice.
        return (scores[:, 64:] * scale).softmax(-1).amax(-1).median().item()

    def layer(self, x):
        """One layer's weights, and x after it."""
        t, s = self.t, self.s
        w = {}
        for name, shape in layer_shapes(s).items():
            if len(shape) == 1:
                w[name] = self.normal(shape, 0.1, 1.0)
            else:
                w[name] = self.normal(shape, shape[1] ** -0.5)
        h = self.rms(x, w["input_layernorm"]).to(t.bfloat16)
        group = s["heads"] // s["kv_heads"]
        q = self.rope(self.rms(self.heads(h @ w["self_attn.q_proj"].T, s["heads"]), w["self_attn.q_norm"]))
        k = self.rope(self.rms(self.heads(h @ w["self_attn.k_proj"].T, s["kv_heads"]), w["self_attn.k_norm"]))
        v = self.heads(h @ w["self_attn.v_proj"].T, s["kv_heads"]).float().repeat_interleave(group, 0)
        scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * s["head_dim"] ** -0.5
        mask = t.ones(scores.shape[1:], device=self.dev, dtype=t.bool).tril()
        scores.masked_fill_(~mask, float("-inf"))
        low, high = 0.1, 30.0
        for _ in range(14):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self.median_top(scores, middle) < TOP_MASS else (low, middle)
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            w[name] = (w[name].float() * low**0.5).to(t.bfloat16)
        top = self.median_top(scores, low)
        a = (scores * low).softmax(-1) @ v
        a = a.transpose(0, 1).reshape(x.shape[0], -1)
        x = self.add(x, a, w, "self_attn.o_proj", ATTENTION)
        h = self.rms(x, w["post_attention_layernorm"]).to(t.bfloat16)
        m = t.nn.functional.silu((h @ w["mlp.gate_proj"].T).float()) * (h @ w["mlp.up_proj"].T).float()
        return w, self.add(x, m, w, "mlp.down_proj", MLP), top

    def add(self, x, y, w, name, share):
        out = y.to(self.t.bfloat16) @ w[name].T
        scale = share * (x.norm(dim=-1) / out.float().norm(dim=-1)).median().item()
        w[name] = (w[name].float() * scale).to(self.t.bfloat16)
        return x + (y.to(self.t.bfloat16) @ w[name].T).float()

    def bytes_of(self, x):
        return x.contiguous().view(self.t.uint8).cpu().numpy().data

    def tensors(self):
        t, s = self.t, self.s
        outside = {
            "model.embed_tokens.weight": self.normal([s["vocab"], s["hidden"]], EMBED_STD),
            "model.norm.weight": self.normal([s["hidden"]], 0.1, 1.0),
        }
        if not s["tied"]:
            outside["lm_head.weight"] = self.normal([s["vocab"], s["hidden"]], EMBED_STD)
        for name, x in outside.items():
            yield name, self.bytes_of(x)
        ids = t.randint(0, s["vocab"], (PROMPT,), device=self.dev, generator=self.random)
        x = outside["model.embed_tokens.weight"][ids].float()
        embed = x.clone()
        tops = []
        with t.inference_mode():
            for l in range(s["layers"]):
                w, x, top = self.layer(x)
                tops.append(top)
                for name, value in w.items():
                    yield f"model.layers.{l}.{name}.weight", self.bytes_of(value)
        cos = t.nn.functional.cosine_similarity(x, embed, dim=-1).median().item()
        print(
            f"median top key's mass {min(tops):.2f} to {max(tops):.2f}; cosine of the last layer's output with the "
            f"token's embedding {cos:.3f}",
            flush=True,
        )


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--shape", choices=SHAPES, default="4b")
    p.add_argument("--tokenizer", default=os.path.join(os.path.dirname(__file__), "../../data/demo-model"))
    p.add_argument("--seed", type=int, default=20261202)
    p.add_argument("--shards", type=int, default=0, help="default: 3 for 4b, else 1")
    a = p.parse_args()
    s = SHAPES[a.shape]
    n_shards = a.shards or (3 if a.shape == "4b" else 1)
    os.makedirs(a.out, exist_ok=True)
    begin = time.monotonic()
    tensors = plain_tensors(s, a.seed) if a.shape == "tiny" else Calibrated(s, a.seed).tensors()
    total = write_folder(a.out, s, a.seed, n_shards, a.tokenizer, tensors)
    for _ in tensors:  # what the generator says at its end
        pass
    print(f"{a.out}: {total / 1e9:.2f} GB in {n_shards} files, {time.monotonic() - begin:.1f} s")


main()
