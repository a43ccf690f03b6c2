// What every build of the kernels provides: one table per instruction set.
#pragma once
#include "kernels/attention.h"
#include "kernels/linear.h"

namespace kvik {

struct Kernels {
    const char* name;
    AttentionKernels attention;
    LinearKernels linear;
};

}  // namespace kvik
