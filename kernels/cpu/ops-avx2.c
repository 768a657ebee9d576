/* ops-avx2.c: the op table for AVX2, FMA and F16C. The ops are in simd-matmul.h, simd-rows.h and simd-attend.h.
 *
 * Only this file is compiled for the instruction set, so nothing outside the table may call into it, and the table's
 * functions only after supported(). Any thread; no state. Meson, on x86_64 only:
 *   qk_libs += static_library('qk-ops-avx2', 'cpu/ops-avx2.c', include_directories: root_inc,
 *     c_args: ['-mavx2', '-mfma', '-mf16c'])
 * with -DQK_HAVE_OPS_AVX2 for ops-select.c. */
#include <string.h>
#include "kernels/cpu/simd-avx2.h"
#include "kernels/cpu/simd-matmul.h"
#include "kernels/cpu/simd-rows.h"
#include "kernels/cpu/simd-attend.h"

const qk_cpu_ops qk_cpu_ops_avx2 = {
    .name = SIMD_ISA_NAME,
    .supported = simd_supported,
    .matmul_bf16 = simd_matmul_bf16,
    .matmul_f32 = simd_matmul_f32,
    .rms_norm = simd_rms_norm,
    .rope = simd_rope,
    .add = simd_add,
    .silu_mul = simd_silu_mul,
    .bf16_to_f32 = simd_bf16_to_f32,
    .f32_to_bf16 = simd_f32_to_bf16,
    .f32_to_i8 = simd_f32_to_i8,
    .attend_bf16 = simd_attend_bf16,
    .attend_f32 = simd_attend_f32,
    .attend_i8 = simd_attend_i8,
    .bound_scores_bf16 = simd_bound_scores_bf16,
    .bound_scores_f32 = simd_bound_scores_f32,
    .merge = simd_merge,
};
