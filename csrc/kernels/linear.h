// Linear maps with packed weights, norms and activations.
#pragma once
#include <cstdint>

namespace kvik {

struct LinearKernels {
    void (*exp)(const float* x, float* y, std::int64_t count);  // y = e^x; count a multiple of 8
};

}  // namespace kvik
