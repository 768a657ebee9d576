#!/usr/bin/env python3
"""What this GPU can do at best, as JSON: read-only and copy bandwidth, bf16 matrix products, pinned transfers, and the
device memory of a bare CUDA context (by NVML's totals, so that nothing else may run beside it).

    ceilings.py [--json FILE]
"""
import argparse
import json
import subprocess
import sys

BARE = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
ok = cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
ok = ok and cuda.cuCtxSetCurrent(context) == 0
free, total = ctypes.c_size_t(), ctypes.c_size_t()
ok = ok and cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print("ready" if ok else "failed", flush=True)
sys.stdin.readline()
"""


def memory_used():
    out = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used,name,driver_version", "--format=csv,noheader,nounits", "-i", "0"],
        capture_output=True, text=True, check=True,
    ).stdout
    used, name, driver = (field.strip() for field in out.strip().splitlines()[0].split(","))
    return int(used), name, driver


def bare_context_mib():
    before = memory_used()[0]
    child = subprocess.Popen(
        [sys.executable, "-c", BARE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    ready = child.stdout.readline().strip() == "ready"
    after = memory_used()[0]
    child.communicate("\n")
    return (after - before) if ready else None


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json")
    a = p.parse_args()
    idle, name, driver = memory_used()
    bare = bare_context_mib()

    import torch

    def median_s(f, n=15):
        times = []
        for i in range(n + 3):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            f()
            end.record()
            end.synchronize()
            if i >= 3:
                times.append(begin.elapsed_time(end) / 1e3)
        return sorted(times)[len(times) // 2]

    d = {"device": name, "driver": driver, "idle_mib": idle, "bare_context_mib": bare}
    x = torch.randn(1 << 30, device="cuda")
    d["read_gb_per_s"] = x.numel() * 4 / median_s(lambda: x.sum()) / 1e9
    y = torch.empty_like(x)
    d["copy_gb_per_s"] = 2 * x.numel() * 4 / median_s(lambda: y.copy_(x)) / 1e9
    host = torch.empty(1 << 28, dtype=torch.float32, pin_memory=True)
    d["h2d_gb_per_s"] = host.numel() * 4 / median_s(lambda: x[: 1 << 28].copy_(host, non_blocking=True), 5) / 1e9
    del x, y, host
    a_, b_ = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    d["bf16_tflops"] = 2 * 8192**3 / median_s(lambda: a_ @ b_) / 1e12
    text = json.dumps(d, indent=1)
    print(text)
    if a.json:
        with open(a.json, "w") as f:
            f.write(text + "\n")


main()
