#include "tests/gpu/gpu-test.h"
int main() { gpu_require(); return tap_done(); }
