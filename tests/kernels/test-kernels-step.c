#include "tests/kernels/fixture.h"
#include "tests/kernels/tap.h"
#include <math.h>
#include <string.h>
int main(void)
{
    fixture_model *m = fixture_model_new(&fixture_small, QK_BF16, 1);
    rig r;
    rig_open(&r, m, &(rig_options){.n_threads = 2, .kv_dtype = QK_F32, .rows_max = 700, .n_pages = 100});
    uint32_t n = 600, vocab = 131;
    int32_t tokens[600];
    uint32_t pages[100];
    uint64_t seed = 5;
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)((fixture_random(&seed) + 1) / 2 * vocab);
    for (uint32_t i = 0; i < 100; i++)
        pages[i] = i;
    double *want = calloc(n * vocab, sizeof(double));
    float *got = calloc(n * vocab, sizeof(float));
    fixture_forward(m, tokens, n, want);
    tap_ok(rig_run(&r, &(rig_rows){tokens, n, 0, pages}, 1, got) == QK_OK, "run");
    double diff = 0, norm = 0;
    for (size_t i = 0; i < (size_t)n * vocab; i++) {
        diff += pow(want[i] - (double)got[i], 2);
        norm += want[i] * want[i];
    }
    tap_ok(sqrt(diff / norm) < 1e-5, "error %g", sqrt(diff / norm));
    rig_close(&r);
    fixture_model_free(m);
    free(want);
    free(got);
    return tap_done();
}
