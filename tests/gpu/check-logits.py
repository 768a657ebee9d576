#!/usr/bin/env python3
"""Full-model logits of our steps against a reference in float32, teacher-forced.

    check-logits.py --model DIR --dump PROGRAM --work DIR [--module FILE] [--paths portable,hopper] [--cli PROGRAM]
                    [--positions N] [--decode N] [--reference transformers|plain] [--json FILE]

1. Errors: over all positions and ids, our largest and mean absolute difference from transformers in float32 (TF32 off)
   are at most 1.2 times (the mean: 0.75 times) those of transformers' own bf16 run.
2. Best ids: where ours differs from the reference's, the reference's two best logits must lie within twice our largest
   error (a tie), and ties are fewer than 0.5% of the positions.
3. Mutations: the dump program repeats the last --decode positions with one page wrong each time; 1. must refuse each.
   The same repetition with nothing wrong must give the same bits as the first pass.
4. The program's own way: with --cli, `quire-cli logits` on some prefixes; its best logits obey 1.

plain is a forward pass in this file, for machines without transformers: the same weights, float32 and bf16.
Prints TAP; the figures go to --json. Exits 1 when a check fails.
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import time

import torch

# Sums and the residual stream are float32 here, so the mean error is 0.6 of bf16's; the bound on it is tight enough that
# one lost page of sixty shows.
RATIO, MEAN_RATIO, TIES = 1.2, 0.75, 0.005
MUTATIONS = ("foreign", "swapped", "zeroed", "tail")


class Tap:
    def __init__(self):
        self.n = self.failed = 0

    def ok(self, condition, text):
        self.n += 1
        self.failed += not condition
        print(f"{'ok' if condition else 'not ok'} {self.n} - {text}", flush=True)

    def note(self, text):
        print(f"# {text}", flush=True)


# ---- The model folder ----------------------------------------------------------------------------------------------


def tensors_of(folder):
    """name -> (file, offset of its bytes, shape, dtype)"""
    found = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".safetensors"):
            continue
        path = os.path.join(folder, file)
        with open(path, "rb") as f:
            (n,) = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(n))
        for name, t in header.items():
            if name != "__metadata__":
                found[name] = (path, 8 + n + t["data_offsets"][0], t["shape"], t["dtype"])
    return found


PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "self_attn.o_proj": "o",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}


def write_index(folder, config, path):
    names = {"model.embed_tokens.weight": "embed", "model.norm.weight": "final_norm"}
    if not config["tie_word_embeddings"]:
        names["lm_head.weight"] = "lm_head"
    for l in range(config["num_hidden_layers"]):
        for theirs, ours in PARTS.items():
            names[f"model.layers.{l}.{theirs}.weight"] = f"{l}.{ours}"
    tensors = tensors_of(folder)
    with open(path, "w") as f:
        keys = "num_hidden_layers num_attention_heads num_key_value_heads head_dim hidden_size intermediate_size vocab_size"
        numbers = [config[k] for k in keys.split()] + [config["rms_norm_eps"], config["rope_theta"]]
        f.write("shape " + " ".join(str(n) for n in numbers) + "\n")
        for theirs, ours in names.items():
            file, offset, shape, dtype = tensors[theirs]
            rows, cols = shape if len(shape) == 2 else (1, shape[0])
            f.write(f"tensor {ours} {file} {offset} {rows} {cols} {dtype.lower()}\n")


# ---- References -----------------------------------------------------------------------------------------------------


def transformers_logits(folder, ids, dtype, device):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(device).eval()
    with torch.inference_mode():
        logits = model(ids[None], use_cache=False).logits[0].float()
    del model
    return logits


def plain_logits(folder, ids, dtype, device):
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    tensors = tensors_of(folder)

    def w(name):
        path, offset, shape, kind = tensors[name + ".weight"]
        n = 1
        for d in shape:
            n *= d
        with open(path, "rb") as f:
            f.seek(offset)
            raw = bytearray(f.read(n * (2 if kind == "BF16" else 4)))
        t = torch.frombuffer(raw, dtype=torch.bfloat16 if kind == "BF16" else torch.float32)
        return t.view(shape).to(device, dtype)

    def rms(x, weight):
        f = x.float()
        return (f * (f.square().mean(-1, keepdim=True) + c["rms_norm_eps"]).rsqrt()).to(dtype) * weight

    n, d = len(ids), c["head_dim"]
    inv = c["rope_theta"] ** (-torch.arange(0, d, 2, device=device, dtype=torch.float64) / d)
    angle = torch.arange(n, device=device, dtype=torch.float64)[:, None] * inv
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)

    def rope(x):
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def heads(y):
        return y.view(n, -1, d).transpose(0, 1)

    group = c["num_attention_heads"] // c["num_key_value_heads"]
    mask = torch.ones(n, n, dtype=torch.bool, device=device).tril()
    embed = w("model.embed_tokens")
    x = embed[ids]
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        h = rms(x, w(p + "input_layernorm"))
        q = rope(rms(heads(h @ w(p + "self_attn.q_proj").T), w(p + "self_attn.q_norm")))
        k = rope(rms(heads(h @ w(p + "self_attn.k_proj").T), w(p + "self_attn.k_norm"))).repeat_interleave(group, 0)
        v = heads(h @ w(p + "self_attn.v_proj").T).repeat_interleave(group, 0)
        s = (q @ k.transpose(1, 2)).float() * d**-0.5
        a = s.masked_fill(~mask, float("-inf")).softmax(-1).to(dtype) @ v
        x = x + a.transpose(0, 1).reshape(n, -1) @ w(p + "self_attn.o_proj").T
        h = rms(x, w(p + "post_attention_layernorm"))
        g = torch.nn.functional.silu(h @ w(p + "mlp.gate_proj").T)
        x = x + (g * (h @ w(p + "mlp.up_proj").T)) @ w(p + "mlp.down_proj").T
    head = embed if c["tie_word_embeddings"] else w("lm_head")
    return (rms(x, w("model.norm")) @ head.T).float()


# ---- Figures ---------------------------------------------------------------------------------------------------------


def compare(logits, reference):
    """Errors of logits, and where its best id differs from the reference's."""
    worst, total, other = 0.0, 0.0, []
    for i in range(0, len(reference), 128):
        a, b = logits[i : i + 128], reference[i : i + 128]
        d = (a - b).abs()
        # A NaN must not get lost in a maximum.
        worst = max(worst, d.max().item()) if bool(d.isfinite().all()) else float("inf")
        total += d.double().sum().item()
        two = b.topk(2, -1)
        for j in (a.argmax(-1) != two.indices[:, 0]).nonzero().flatten().tolist():
            other.append((i + j, (two.values[j, 0] - two.values[j, 1]).item()))
    relative = ((logits - reference).norm(dim=-1) / reference.norm(dim=-1)).median().item()
    return {"max": worst, "mean": total / reference.numel(), "relative": relative, "other": other}


def read_logits(path, vocab, device):
    n = os.path.getsize(path) // 4
    return torch.from_file(path, shared=False, size=n, dtype=torch.float32).view(-1, vocab).to(device)


def accepts(ours, bf16):
    return ours["max"] <= RATIO * bf16["max"] and ours["mean"] <= MEAN_RATIO * bf16["mean"]


def check_ties(tap, name, got, n):
    wrong = [(p, gap) for p, gap in got["other"] if gap >= 2 * got["max"]]
    tap.ok(not wrong, f"{name}: {len(got['other'])} of {n} best ids differ, all of them ties {wrong[:4] or ''}")
    tap.ok(len(got["other"]) < TIES * n, f"{name}: ties are fewer than {TIES:.1%} of the positions")


def check_path(tap, a, name, isa, index, ids_file, reference, bf16, env):
    out = os.path.join(a.work, f"logits-{name}.f32")
    command = [a.dump, "--index", index, "--ids", ids_file, "--out", out, "--backend", a.backend]
    command += ["--decode", str(a.decode), "--mutate"] + (["--isa", isa] if isa else [])
    begin = time.monotonic()
    run = subprocess.run(command, env=env, stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        tap.ok(False, f"{name}: {run.stderr.strip()}")
        return None
    tap.note(f"{name}: dumped in {time.monotonic() - begin:.1f} s")
    vocab, device, n = reference.shape[1], reference.device, len(reference)
    logits = read_logits(out, vocab, device)
    got = compare(logits, reference)
    tap.ok(
        accepts(got, bf16),
        f"{name}: largest error {got['max']:.4g} ({got['max'] / bf16['max']:.2f} of bf16's), mean {got['mean']:.4g} "
        f"({got['mean'] / bf16['mean']:.2f}), median relative {got['relative']:.4f}",
    )
    check_ties(tap, name, got, n)
    tail = slice(n - a.decode, n)
    again = read_logits(out + ".none", vocab, device)
    tap.ok(torch.equal(again, logits[tail]), f"{name}: the same positions again give the same bits")
    tail_bf16 = {"max": bf16["max"], "mean": bf16["tail_mean"]}
    tap.ok(accepts(compare(again, reference[tail]), tail_bf16), f"{name}: the single steps alone obey the same bounds")
    for m in MUTATIONS:
        wrong = compare(read_logits(f"{out}.{m}", vocab, device), reference[tail])
        tap.ok(
            not accepts(wrong, tail_bf16),
            f"{name}: page {m}: refused, mean error {wrong['mean'] / tail_bf16['mean']:.2f} of bf16's",
        )
    for suffix in ("", ".none") + tuple("." + m for m in MUTATIONS):
        os.remove(out + suffix)
    return {k: got[k] for k in ("max", "mean", "relative")} | {"ties": len(got["other"])}


def check_cli(tap, a, name, isa, ids, reference, bf16, env):
    for n in (len(ids) // 3, len(ids)):
        command = [a.cli, "logits", "--model", a.model, "--backend", a.backend, "--top", "1000", "--json"]
        command += ["--ids", ",".join(str(i) for i in ids[:n].tolist())] + (["--isa", isa] if isa else [])
        run = subprocess.run(command, env=env, capture_output=True, text=True)
        if run.returncode != 0:
            tap.ok(False, f"quire-cli logits, {name}: {run.stderr.strip()}")
            return
        top = json.loads(run.stdout)["top"]
        theirs = reference[n - 1]
        d = torch.tensor([abs(t["logit"] - theirs[t["id"]].item()) for t in top])
        best = theirs.argmax().item()
        gap = theirs[best].item() - theirs[top[0]["id"]].item()
        tap.ok(
            d.max().item() <= RATIO * bf16["max"] and d.mean().item() <= 2 * RATIO * bf16["mean"],
            f"quire-cli logits, {name}, {n} ids: the best 1,000 differ by {d.max().item():.4g} at most, {d.mean().item():.4g}"
            " in the mean",
        )
        tap.ok(gap < 2 * RATIO * bf16["max"], f"quire-cli logits, {name}, {n} ids: the best id is the reference's or a tie")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--dump", required=True)
    p.add_argument("--work", required=True)
    p.add_argument("--module")
    p.add_argument("--cli")
    p.add_argument("--backend", default="cuda")
    p.add_argument("--paths", default="portable,hopper")
    p.add_argument("--positions", type=int, default=1024)
    p.add_argument("--decode", type=int, default=43)
    p.add_argument("--reference", choices=("transformers", "plain"), default="transformers")
    p.add_argument("--json")
    a = p.parse_args()
    assert (a.positions - a.decode) % 16, "the last page must be filled in part"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    os.makedirs(a.work, exist_ok=True)
    with open(os.path.join(a.model, "config.json")) as f:
        config = json.load(f)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    env = dict(os.environ, **({"QUIRE_CUDA_MODULE": a.module} if a.module else {}))
    index, ids_file = os.path.join(a.work, "index.txt"), os.path.join(a.work, "ids.i32")
    write_index(a.model, config, index)
    ids = torch.randint(0, config["vocab_size"], (a.positions,), generator=torch.Generator().manual_seed(5))
    with open(ids_file, "wb") as f:
        f.write(struct.pack(f"<{a.positions}i", *ids.tolist()))

    tap = Tap()
    begin = time.monotonic()
    make = transformers_logits if a.reference == "transformers" else plain_logits
    reference = make(a.model, ids.to(device), torch.float32, device)
    logits = make(a.model, ids.to(device), torch.bfloat16, device)
    bf16 = compare(logits, reference)
    bf16["tail_mean"] = compare(logits[-a.decode :], reference[-a.decode :])["mean"]
    del logits
    if device == "cuda":
        torch.cuda.empty_cache()
    tap.note(
        f"{a.reference} in bf16: largest error {bf16['max']:.4g}, mean {bf16['mean']:.4g}, median relative "
        f"{bf16['relative']:.4f}, {len(bf16['other'])} of {a.positions} best ids differ ({time.monotonic() - begin:.1f} s)"
    )
    figures = {"positions": a.positions, "bf16": {k: bf16[k] for k in ("max", "mean", "relative")} | {"ties": len(bf16["other"])}}
    for name in a.paths.split(","):
        isa = name if a.backend == "cuda" else None
        figures[name] = check_path(tap, a, name, isa, index, ids_file, reference, bf16, env)
        if a.cli:
            check_cli(tap, a, name, isa, ids, reference, bf16, env)
    print(f"1..{tap.n}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(figures, f, indent=1)
    sys.exit(1 if tap.failed else 0)


main()
