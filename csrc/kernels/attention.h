// Attention over cached K and V, and writing them.
#pragma once
#include <cstdint>

namespace kvik {

struct AttentionKernels {
    int lanes;
};

}  // namespace kvik
