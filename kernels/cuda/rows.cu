#include "kernels/cuda/cuda-ops.h"
