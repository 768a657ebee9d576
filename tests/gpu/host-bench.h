/* host-bench.h: times of KV pages in host memory, for test-gpu-host --bench. */
#pragma once
#include <stdint.h>

typedef struct {
    uint32_t n_layers;
    uint32_t n_tokens; /* in host memory, at most */
} host_bench_options;

/* Prints a line a figure; the exit status. */
int host_bench(const host_bench_options *options);
