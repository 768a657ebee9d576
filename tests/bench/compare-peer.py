#!/usr/bin/env python3
"""Time quire-cli beside llama.cpp's CPU backend: same weights, same machine, same minutes.

    QUIRE_PEER=PEER compare-peer.py --cli quire-cli \\
        --pair "0.6B shape" HF_DIR PEER.gguf --pair "shipped model" data/demo-model DEMO.gguf

PEER is a program that loads a GGUF file into llama.cpp and prints one JSON object
a line; it is called as

    PEER --device none --threads T -m FILE --prompt N --gen N --reps R

and the line with "what": "bench" is read (ttft_ms, decode_ms_tok, rss_peak_mib).
Quire is called as

    quire-cli bench --model DIR --prompt N --gen N --threads T --json

The two take turns, and each round the other one begins, so that what else the
machine does meets both. Every figure is the median over the rounds. Prints a
Markdown table; --json keeps all rounds. Without --cli the peer is timed alone.

Two threads on two CPUs halve their speed as soon as another program takes one, so
each run also records how many CPUs' worth of time other programs used meanwhile
(machine's busy time less the run's own); a run over --max-other is repeated, and
the least disturbed try is kept.

Weights per token are counted from the folder's safetensors headers, the same for
both sides: all tensors but an input embedding that is not also the output layer.
Ends with 77 (skipped) where QUIRE_PEER is not set.
"""
import argparse
import datetime
import json
import os
import resource
import shlex
import statistics
import struct
import subprocess
import sys
import time

RUN_SECONDS_MAX = 240    # threads that wait by spinning take minutes once other programs hold the CPUs

# key, title, unit format, whether smaller is better (None: not a speed)
FIGURES = [
    ("ttft_ms", "first token, ms", "{:.1f}", True),
    ("prefill_tok_s", "prefill, tokens/s", "{:.0f}", False),
    ("ms_tok", "decode, ms/token", "{:.3f}", True),
    ("tok_s", "decode, tokens/s", "{:.1f}", False),
    ("gb_s", "weights read, GB/s", "{:.1f}", None),
    ("share", "share of read bandwidth", "{:.0%}", None),
    ("peak_mib", "peak memory, MiB", "{:.0f}", None),
]


def weight_bytes(folder):
    """Bytes of weights that one decoded token reads."""
    files = sorted(f for f in os.listdir(folder) if f.endswith(".safetensors"))
    if not files:
        sys.exit(f"compare-peer: no .safetensors file in {folder}")
    sizes = {}
    for name in files:
        with open(os.path.join(folder, name), "rb") as f:
            head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        sizes.update({k: t["data_offsets"][1] - t["data_offsets"][0] for k, t in head.items() if k != "__metadata__"})
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        tied = json.load(f).get("tie_word_embeddings", False)
    return sum(n for k, n in sizes.items() if tied or not k.endswith("embed_tokens.weight"))


def load_average():
    try:
        return os.getloadavg()[0]
    except OSError:
        return float("nan")


def busy_seconds():
    """CPU time that all programs have used since the machine started; None where it is not told."""
    try:
        with open("/proc/stat", encoding="utf-8") as f:
            user, nice, system = map(int, f.readline().split()[1:4])
        return (user + nice + system) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


def own_seconds():
    u = resource.getrusage(resource.RUSAGE_CHILDREN)
    return u.ru_utime + u.ru_stime


def undisturbed(a, measure):
    """The row of the least disturbed of some runs; stops at the first that is quiet enough."""
    best = None
    for _ in range(1 + a.retries):
        busy, own, start = busy_seconds(), own_seconds(), time.monotonic()
        row = measure()
        if busy is None:
            return row
        row["other_cpus"] = max(0.0, busy_seconds() - busy - (own_seconds() - own)) / (time.monotonic() - start)
        if best is None or row["other_cpus"] < best["other_cpus"]:
            best = row
        if best["other_cpus"] <= a.max_other:
            break
    return best


def machine_words():
    words = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            for line in f:
                k, _, v = line.partition(":")
                words.setdefault(k.strip(), v.strip())
    except OSError:
        pass
    flags = words.get("flags", "").split()
    vector = [n for n in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if n in flags]
    return f"{words.get('model name', 'unknown processor')}, {os.cpu_count()} logical CPUs, {' '.join(vector) or 'no AVX2'}"


def run(command, what):
    try:
        p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=RUN_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        sys.exit(f"compare-peer: {what} took over {RUN_SECONDS_MAX} s; is the machine busy? {shlex.join(command)}")
    if p.returncode:
        sys.exit(f"compare-peer: {what} ended with {p.returncode}: {shlex.join(command)}\n{p.stderr[-2000:]}")
    return p.stdout


def json_in(text, accept):
    """The object that accept() takes: the whole text, or the last line that is one."""
    for piece in [text] + text.splitlines()[::-1]:
        try:
            j = json.loads(piece)
        except ValueError:
            continue
        if isinstance(j, dict) and accept(j):
            return j
    sys.exit("compare-peer: no result in this output:\n" + text[-2000:])


def derive(row, n_prompt, n_bytes):
    """Fill in what follows from the measured times."""
    if row.get("ttft_ms"):
        row.setdefault("prefill_tok_s", n_prompt / row["ttft_ms"] * 1e3)
    if row.get("ms_tok"):
        row.setdefault("tok_s", 1e3 / row["ms_tok"])
        row["gb_s"] = n_bytes / row["ms_tok"] / 1e6
    return {k: v for k, v in row.items() if v is not None}


def time_peer(a, gguf, n_bytes):
    out = run(shlex.split(os.environ["QUIRE_PEER"]) +
              ["--device", "none", "--threads", str(a.threads), "-m", gguf, "--prompt", str(a.prompt),
               "--gen", str(a.gen), "--reps", str(a.reps)], "the peer")
    j = json_in(out, lambda j: j.get("what") == "bench")
    return derive(dict(ttft_ms=j.get("ttft_ms"), ms_tok=j.get("decode_ms_tok"), peak_mib=j.get("rss_peak_mib")),
                  a.prompt, n_bytes)


def time_quire(a, folder, n_bytes):
    out = run(shlex.split(a.cli) + ["bench", "--model", folder, "--prompt", str(a.prompt), "--gen", str(a.gen),
                                    "--threads", str(a.threads), "--repeats", str(a.reps), "--json"], "quire-cli")
    j = json_in(out, lambda j: "depths" in j)
    prompt, decode, machine = j["depths"][0]["prompt"], j["depths"][0]["decode"], j.get("machine") or {}
    peak = j.get("peak_rss_bytes")
    row = derive(dict(ttft_ms=prompt.get("ttft_ms"), ms_tok=decode.get("ms_per_token"),
                      peak_mib=peak / 2**20 if peak else None), a.prompt, n_bytes)
    if machine.get("read_gb_per_s"):
        row["read_gb_s"] = machine["read_gb_per_s"]
    if machine.get("f32_gflops"):
        row["f32_gflops"] = machine["f32_gflops"]
    return row


def median(rows, key):
    values = [r[key] for r in rows if key in r]
    return statistics.median(values) if values else None


def spread(rows, key):
    values = [r[key] for r in rows if key in r]
    return (max(values) - min(values)) / statistics.median(values) if len(values) > 1 else 0.0


def table(name, sides, read_gb_s):
    """sides: {"Quire": rounds, "llama.cpp": rounds}, either may be missing"""
    mid = {side: {k: median(rows, k) for k, *_ in FIGURES} for side, rows in sides.items()}
    for m in mid.values():
        if m["gb_s"] and read_gb_s:
            m["share"] = m["gb_s"] / read_gb_s
    both = len(mid) == 2
    lines = [f"| {name} | " + " | ".join(mid) + (" | Quire's speed over the peer's |" if both else " |"),
             "| --- |" + " ---: |" * (len(mid) + both)]
    for key, title, form, smaller in FIGURES:
        cells = [form.format(m[key]) if m[key] is not None else "–" for m in mid.values()]
        if both:
            q, p = mid["Quire"][key], mid["llama.cpp"][key]
            cells.append("" if smaller is None else "–" if not q or not p else f"{p / q if smaller else q / p:.2f}")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    for side, rows in sides.items():
        lines.append(f"\nSpread of the rounds, {side} (largest less smallest, over the median): first token "
                     f"{spread(rows, 'ttft_ms'):.0%}, decode {spread(rows, 'ms_tok'):.0%}.")
    return "\n".join(lines)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--cli", help="quire-cli, with leading arguments if need be")
    ap.add_argument("--pair", nargs=3, metavar=("NAME", "HF_DIR", "GGUF"), action="append", required=True)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--prompt", type=int, default=128)
    ap.add_argument("--gen", type=int, default=64)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--reps", type=int, default=3, help="repetitions inside one run of the peer")
    ap.add_argument("--max-other", type=float, default=0.1, help="CPUs' worth of other programs that a run may meet")
    ap.add_argument("--retries", type=int, default=1, help="how often a disturbed run is repeated")
    ap.add_argument("--read-gb-per-s", type=float, help="read bandwidth, where quire-cli does not report it")
    ap.add_argument("--json", metavar="FILE", help="write every round here")
    a = ap.parse_args()
    if not os.environ.get("QUIRE_PEER"):
        print("compare-peer: QUIRE_PEER is not set; skipped", file=sys.stderr)
        sys.exit(77)

    load, everything = [load_average()], []
    rounds = {name: {s: [] for s in (("Quire", "llama.cpp") if a.cli else ("llama.cpp",))} for name, _, _ in a.pair}
    for r in range(a.rounds):
        for name, folder, gguf in a.pair:
            n_bytes = weight_bytes(folder)
            turns = list(rounds[name])
            for side in turns if r % 2 == 0 else turns[::-1]:
                row = undisturbed(a, (lambda: time_quire(a, folder, n_bytes)) if side == "Quire"
                                  else (lambda: time_peer(a, gguf, n_bytes)))
                rounds[name][side].append(row)
                load.append(load_average())
                everything.append(dict(row, round=r, model=name, side=side, load=load[-1]))
                print(f"round {r + 1}, {name}, {side}: first token {row.get('ttft_ms', 0):.1f} ms, "
                      f"{row.get('ms_tok', 0):.3f} ms/token, others {row.get('other_cpus', 0):.2f} CPUs",
                      file=sys.stderr, flush=True)
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(everything, f, indent=1)

    quire = [x for sides in rounds.values() for x in sides.get("Quire", [])]
    read_gb_s, gflops = a.read_gb_per_s or median(quire, "read_gb_s"), median(quire, "f32_gflops")
    print(f"{datetime.date.today()}, {machine_words()}, {a.threads} threads; prompt {a.prompt}, {a.gen} tokens; "
          f"{a.rounds} rounds, medians; bf16 weights; load average {load[0]:.2f} before, at most {max(load):.2f} "
          f"(the runs themselves count); other programs used at most {max(r.get('other_cpus', 0) for r in everything):.2f} "
          f"CPUs during a run that counts.")
    if read_gb_s:
        print(f"Read bandwidth {read_gb_s:.1f} GB/s" + (f", float32 FMA {gflops:.0f} GFLOP/s." if gflops else "."))
    for name, _, _ in a.pair:
        print("\n" + table(name, rounds[name], read_gb_s))


if __name__ == "__main__":
    main()
