// Attention over cached K and V, and writing them.
#pragma once
#include "kvik.h"

namespace kvik {

struct AttentionKernels {
    void (*paged)(const kvik_batch&, const kvik_layer&, const kvik_step&);
    void (*dense)(const kvik_dense&);
};

}  // namespace kvik
