#!/usr/bin/env python3
"""transformers' figures for `quire-cli bench modes --against FILE`.

For each length: a prompt of that many pseudo-random tokens, then N tokens by generate(), greedy, end tokens ignored:
  default   what generate() does by itself: a DynamicCache that goes with the call, so every turn of a chat computes the
            whole conversation again
  no-cache  use_cache=False: every token computes the whole conversation again (only with --no-cache, it is slow: its time
            for N tokens is worked out from --no-cache-tokens of them and says so in "note")
First token: the time of generate() for one new token; end to end: for N. Median of --repeats after a warm-up. Peak: the
allocator's peak and what the driver counts for the process beside it (the CUDA context), in bytes.

The model is a folder in Hugging Face's layout, the same that quire-cli runs; with --random its config.json alone is read
and the weights are drawn, which takes the files' reading out of it and changes no speed.

Needs: a CUDA card, PyTorch, transformers. Writes {"name", "rows": [{"tokens", "first_token_ms", "e2e_ms", "peak_bytes"}]}.

    tests/bench/transformers-modes.py --model DIR --lengths 2048,32768 --out against.json
    quire-cli bench modes --model DIR --lengths 2048,32768 --against against.json
"""
import argparse
import json
import statistics
import sys
import time

import torch
import transformers


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", required=True, metavar="DIR")
    p.add_argument("--random", action="store_true", help="draw the weights, read config.json alone")
    p.add_argument("--lengths", default="2048,32768", metavar="LIST")
    p.add_argument("--tokens", type=int, default=256, metavar="N")
    p.add_argument("--repeats", type=int, default=1, metavar="N")
    p.add_argument("--no-cache", action="store_true", help="measure use_cache=False instead of the default")
    p.add_argument("--no-cache-tokens", type=int, default=8, metavar="N")
    p.add_argument("--out", required=True, metavar="FILE")
    return p.parse_args()


def load(args):
    if not args.random:
        return transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).cuda().eval()
    config = transformers.AutoConfig.from_pretrained(args.model)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    return model.eval()


def driver_bytes():
    """What the card has in use beside PyTorch's own blocks: the context, and other programs if there are any."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


@torch.inference_mode()
def seconds(model, ids, n_new, use_cache):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n_new, min_new_tokens=n_new,
                         do_sample=False, use_cache=use_cache, eos_token_id=None, pad_token_id=0)
    torch.cuda.synchronize()
    assert out.shape[1] == ids.shape[1] + n_new, out.shape
    return time.perf_counter() - begin


def measure(model, length, args, beside):
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(0, model.config.vocab_size, (1, length), generator=generator).cuda()
    use_cache = not args.no_cache
    n = min(args.tokens, args.no_cache_tokens) if args.no_cache else args.tokens
    seconds(model, ids, 1, use_cache)  # a warm-up
    first = statistics.median(seconds(model, ids, 1, use_cache) for _ in range(args.repeats))
    torch.cuda.reset_peak_memory_stats()
    whole = statistics.median(seconds(model, ids, n, use_cache) for _ in range(args.repeats))
    row = {"tokens": length, "first_token_ms": 1e3 * first, "peak_bytes": torch.cuda.max_memory_reserved() + beside}
    if n == args.tokens:
        row["e2e_ms"] = 1e3 * whole
    else:
        row["e2e_ms"] = 1e3 * (first + (whole - first) / (n - 1) * (args.tokens - 1))
        row["note"] = f"end to end worked out from {n} tokens"
    return row


def main():
    args = parse()
    if args.tokens < 2 or args.no_cache_tokens < 2 or args.repeats < 1:
        sys.exit("--tokens and --no-cache-tokens are 2 or more, --repeats 1 or more")
    model = load(args)
    beside = driver_bytes()
    kind = "without a cache" if args.no_cache else "default"
    result = {"name": f"transformers {transformers.__version__}, {kind}", "device": torch.cuda.get_device_name(),
              "torch": torch.__version__, "gen": args.tokens, "rows": []}
    for length in (int(x) for x in args.lengths.split(",")):
        try:
            result["rows"].append(measure(model, length, args, beside))
        except torch.cuda.OutOfMemoryError:
            result["rows"].append({"tokens": length, "first_token_ms": None, "e2e_ms": None, "peak_bytes": None,
                                   "note": "does not fit"})
            torch.cuda.empty_cache()
        print(result["rows"][-1], file=sys.stderr, flush=True)
        with open(args.out, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
