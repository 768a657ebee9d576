#!/usr/bin/env python3
"""The table of CUDA figures from what tests/gpu/run left in a folder, as Markdown.

    report.py DIR [--out FILE]

Reads, as far as they are there: ceilings.json, bench-portable.json, bench-hopper.json (`quire-cli bench --json`),
memory-PATH.txt (samples of nvidia-smi's used MiB during that run), logits.json, peer-pytorch.txt and peer-llama.jsonl (of
the same lease; else the recorded figures stand in and say so). A figure that was not measured is a dash, never a guess.

The projection for another card is arithmetic, not a measurement: bytes at the same share of that card's bandwidth,
products at the same share of its peak.
"""
import argparse
import json
import os
import re

PATHS = ("portable", "hopper")

# Qwen3-4B's shape: what a token costs.
LAYERS, HEADS, HEAD_DIM = 36, 32, 128
PARAMS, EMBED = 4.022468096e9, 151936 * 2560
WEIGHT_BYTES, KV_BYTES = 2 * PARAMS, 147456

# The card of the projection, by its maker's figures: GB/s; dense bf16 with float32 sums, TFLOP/s; and what a PCIe 4.0
# x16 slot carries in practice.
CARD = {"name": "RTX 4090 D", "gb_per_s": 1008.0, "bf16_tflops": 147.0, "h2d_gb_per_s": 25.0}

# Measured on an H200 on 2026-12-02: llama.cpp 0.5.0 (bf16, flash attention), compiled PyTorch with a CUDA graph.
RECORDED = {
    "llama": {"decode": {128: 4.35, 8192: 4.98, 32768: 6.45}, "cold": {128: 9.1, 8192: 275, 32768: 2068},
              "warm": 15.2, "e2e": 1120, "load": 1.2},
    "torch": {"decode": {128: 3.12, 32768: 4.63}, "batch": {16: 3680}},
}


def load_json(folder, name):
    try:
        with open(os.path.join(folder, name)) as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def load_lines(folder, name):
    try:
        with open(os.path.join(folder, name)) as f:
            return f.read().splitlines()
    except OSError:
        return []


# ---- Our figures ------------------------------------------------------------------------------------------------------


def ours(bench, folder, path, ceilings):
    """key -> number, from one bench."""
    f = {}
    if bench is None:
        return f
    for d in bench.get("depths", []):
        context = d["depth"] + d["prompt"]["n"]
        f["decode", context] = d["decode"]["ms_per_token"]
        f["first", context] = d["prompt"]["ttft_ms"]
    for c in bench.get("cold", []):
        f["cold", c["n"]] = c["ttft_ms"]
    for e in bench.get("e2e", []):
        f["e2e", e["temperature"] > 0] = e["ms"]
    for b in bench.get("batches", []):
        f["batch", b["n"]] = b["tokens_per_s"]
    f["load",] = bench.get("load", {}).get("again_s")
    f["first load",] = bench.get("load", {}).get("first_s")
    # By the program's own account of its process, or by the card's total where the driver does not tell them apart.
    beyond = bench.get("device", {}).get("beyond_bytes")
    samples = [int(x) for x in load_lines(folder, f"memory-{path}.txt") if x.strip().isdigit()]
    if beyond is None and samples and ceilings:
        beyond = (max(samples) - ceilings["idle_mib"]) * 2**20 - bench["weight_bytes"] - bench["kv_bytes_reserved"]
    if beyond is not None and ceilings and ceilings.get("bare_context_mib") is not None:
        f["memory",] = beyond / 2**20 - ceilings["bare_context_mib"]
    return {k: v for k, v in f.items() if v is not None}


def peers(folder):
    """The two peers' figures and whether they are of this lease."""
    llama, torch_, fresh = json.loads(json.dumps(RECORDED["llama"])), json.loads(json.dumps(RECORDED["torch"])), []
    llama = {k: {int(n): x for n, x in v.items()} if isinstance(v, dict) else v for k, v in llama.items()}
    torch_ = {k: {int(n): x for n, x in v.items()} for k, v in torch_.items()}
    for line in load_lines(folder, "peer-llama.jsonl"):
        try:
            j = json.loads(line)
        except ValueError:
            continue
        if j.get("what") == "setup" and "load_ms" in j:
            llama["load"] = j["load_ms"] / 1000
        if j.get("what") != "bench":
            continue
        fresh.append("llama.cpp")
        context = j["depth"] + j["prompt"]
        if j["gen"] >= 16:
            llama["decode"][context] = j["decode_ms_tok"]
        if j["depth"] == 0:
            llama["cold"][j["prompt"]] = j["ttft_ms"]
        if j["depth"] == 16384 and j["prompt"] == 128:
            llama["warm"] = j["ttft_ms"]
        if j["depth"] == 0 and j["prompt"] == 128:
            llama["e2e"] = j["ttft_ms"] + 255 * j["decode_ms_tok"]
    for line in load_lines(folder, "peer-pytorch.txt"):
        m = re.search(r"B=(\d+) ctx=(\d+): ([\d.]+) ms/step, (\d+) tok/s", line)
        if not m:
            continue
        fresh.append("compiled PyTorch")
        batch, context, ms, rate = int(m[1]), int(m[2]), float(m[3]), float(m[4])
        if batch > 1:
            torch_["batch"][batch] = rate
        else:
            torch_["decode"][128 if context < 1000 else 32768] = ms
    return llama, torch_, sorted(set(fresh))


# ---- The table ---------------------------------------------------------------------------------------------------------


def number(x, digits=None):
    if x is None:
        return "-"
    if digits is None:
        digits = 0 if abs(x) >= 100 else 1 if abs(x) >= 10 else 2
    return f"{x:,.{digits}f}"


def rows_of(llama, torch_):
    """(figure, key of ours, llama.cpp, PyTorch, target, stretch, larger is better)"""
    rows = []
    for context, target, stretch, word in ((128, 2.4, 2.15, "128"), (8192, 2.8, 2.5, "8K"), (32768, 3.9, 3.5, "32K")):
        rows.append((f"decode, context {word}, ms/token", ("decode", context), llama["decode"].get(context),
                     torch_["decode"].get(context), target, stretch, False))
    rows.append(("256 tokens after a prompt of 128, ms", ("e2e", False), llama["e2e"], None, 640, 570, False))
    rows.append(("the same at temperature 0.3, top-p 0.9, % more", ("sampled",), None, None, 2, 0, False))
    for n, target, stretch in ((128, 5, 3.5), (8192, 150, 130), (32768, 1100, 920)):
        rows.append((f"cold first token, {n:,} tokens, ms", ("cold", n), llama["cold"].get(n), None, target, stretch, False))
    rows.append(("first token of 128 new on 16K cached, ms", ("first", 16512), llama["warm"], None, 7, 5, False))
    for n, target, stretch in ((16, 4600, 5400), (64, 10000, 14000)):
        rows.append((f"decode at context 1K, batch {n}, tokens/s", ("batch", n), None, torch_["batch"].get(n), target,
                     stretch, True))
    rows.append(("load 8 GB from the page cache, s", ("load",), llama["load"], None, 0.6, 0.3, False))
    rows.append(("device memory beyond weights, pages, context, MiB", ("memory",), None, None, 500, 250, False))
    return rows


def verdict(x, target, stretch, more):
    if x is None:
        return "not measured"
    reaches = (lambda bound: x >= bound) if more else (lambda bound: x <= bound)
    return "stretch" if reaches(stretch) else "target" if reaches(target) else "**missed**"


def table(figures, llama, torch_):
    head = ["figure", "llama.cpp", "compiled PyTorch", "target", "stretch"] + [f"ours, {p}" for p in PATHS] + ["reached"]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 2) + " --- |"]
    missed = []
    for name, key, l, t, target, stretch, more in rows_of(llama, torch_):
        mine = [figures[p].get(key) for p in PATHS]
        known = [x for x in mine if x is not None]
        best = (max if more else min)(known) if known else None
        said = verdict(best, target, stretch, more)
        if said == "**missed**":
            missed.append(name)
        cells = [name, number(l), number(t), number(target), number(stretch)] + [number(x) for x in mine] + [said]
        lines.append("| " + " | ".join(cells) + " |")
    return lines, missed


# ---- Shares and the projection -------------------------------------------------------------------------------------------


def decode_bytes(context):
    return WEIGHT_BYTES + KV_BYTES * (context + 32)  # half of the 64 tokens of a run


def prompt_flops(n):
    return 2 * n * (PARAMS - EMBED) + 2 * EMBED + 2 * LAYERS * HEADS * HEAD_DIM * n * n


def shares(figures, benches):
    lines = []
    for p in PATHS:
        read = (benches[p] or {}).get("machine", {}).get("read_gb_per_s")
        for context in (128, 8192, 32768):
            ms = figures[p].get(("decode", context))
            if ms and read:
                rate = decode_bytes(context) / ms / 1e6
                lines.append(f"- {p}, decode at {context:,}: {decode_bytes(context) / 1e9:.2f} GB a token, {rate:,.0f} GB/s, "
                             f"{rate / read:.0%} of the {read:,.0f} GB/s read-only in that run")
    return lines


def projection(figures, benches, ceilings):
    f, bench = figures["portable"], benches["portable"]
    read = (bench or {}).get("machine", {}).get("read_gb_per_s")
    if not read or not ceilings:
        return ["Not computed: the portable path's figures or the ceilings are missing."]
    # The share of the *measured* ceiling is kept; the other card's ceiling is the same fraction of its maker's figure as
    # the H200's is (4,800 GB/s).
    other_read = CARD["gb_per_s"] * read / 4800
    lines = [f"**A projection, not a measurement**: the portable path's shares on this device, applied to a {CARD['name']} "
             f"({CARD['gb_per_s']:,.0f} GB/s, of which {other_read:,.0f} readable; {CARD['bf16_tflops']:.0f} TFLOP/s dense "
             f"bf16; PCIe 4.0 x16 at {CARD['h2d_gb_per_s']:.0f} GB/s).", "",
             "| figure | here | projected | floor there |", "| --- | ---: | ---: | ---: |"]
    for context in (128, 8192, 32768):
        ms = f.get(("decode", context))
        if ms:
            floor = decode_bytes(context) / other_read / 1e6
            share = decode_bytes(context) / ms / 1e6 / read
            lines.append(f"| decode, context {context:,}, ms/token | {number(ms)} | {number(floor / share)} | {number(floor)} |")
    for n in (128, 8192, 32768):
        ms = f.get(("cold", n))
        if ms:
            # Bound by products or, for a short prompt, by the weights' bytes: the larger floor on either device.
            here = max(prompt_flops(n) / ceilings["bf16_tflops"] / 1e9, WEIGHT_BYTES / read / 1e6)
            there = max(prompt_flops(n) / CARD["bf16_tflops"] / 1e9, WEIGHT_BYTES / other_read / 1e6)
            lines.append(f"| cold first token, {n:,} tokens, ms | {number(ms)} | {number(ms * there / here)} | {number(there)} |")
    load = f.get(("load",))
    if load and ceilings.get("h2d_gb_per_s"):
        here, there = (WEIGHT_BYTES / c["h2d_gb_per_s"] / 1e9 for c in (ceilings, CARD))
        lines.append(f"| load from the page cache, s | {number(load)} | {number(load - here + there)} | {number(there)} |")
    return lines


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--out")
    a = p.parse_args()
    ceilings = load_json(a.folder, "ceilings.json")
    benches = {path: load_json(a.folder, f"bench-{path}.json") for path in PATHS}
    figures = {path: ours(benches[path], a.folder, path, ceilings) for path in PATHS}
    for f in figures.values():
        if ("e2e", False) in f and ("e2e", True) in f:
            f["sampled",] = 100 * (f["e2e", True] / f["e2e", False] - 1)
    llama, torch_, fresh = peers(a.folder)
    out = []
    if ceilings:
        out.append(f"{ceilings['device']}, driver {ceilings['driver']}: read-only {ceilings['read_gb_per_s']:,.0f} GB/s, copy "
                   f"{ceilings['copy_gb_per_s']:,.0f} GB/s, bf16 products {ceilings['bf16_tflops']:,.0f} TFLOP/s, pinned host "
                   f"to device {ceilings['h2d_gb_per_s']:.1f} GB/s, a bare context {ceilings['bare_context_mib']} MiB.")
        out.append("")
    lines, missed = table(figures, llama, torch_)
    out += lines + [""]
    recorded = [x for x in ("llama.cpp", "compiled PyTorch") if x not in fresh]
    if recorded:
        out += [f"Of {' and '.join(recorded)}: figures recorded on an H200 on 2026-12-02, not of this run.", ""]
    out += shares(figures, benches)
    logits = load_json(a.folder, "logits.json")
    for path in PATHS:
        if logits and logits.get(path):
            l, b = logits[path], logits["bf16"]
            out.append(f"- {path}, logits at {logits['positions']:,} positions against float32: largest error {l['max']:.3g} "
                       f"({l['max'] / b['max']:.2f} of bf16 transformers'), mean {l['mean']:.3g} ({l['mean'] / b['mean']:.2f}), "
                       f"{l['ties']} ties")
    out += ["", f"### Projection for a {CARD['name']}", ""] + projection(figures, benches, ceilings)
    text = "\n".join(out) + "\n"
    print(text)
    if missed:
        print("Targets missed: " + "; ".join(missed))
    if a.out:
        with open(a.out, "w") as f:
            f.write(text)


main()
