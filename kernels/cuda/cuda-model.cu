#include "kernels/cuda/cuda-backend.h"
