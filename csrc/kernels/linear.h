// Linear maps with packed weights, norms and activations.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "kvik_linear.h"
#include "runtime/threads.h"

namespace kvik {

// Outputs of a row: those of all its matrices. Static: each instruction set needs its own copy.
static inline std::int64_t width(const kvik_project_args& maps) {
    std::int64_t sum = 0;
    for (int i = 0; i < maps.count; ++i) sum += maps.matrices[i].rows;
    return sum;
}

struct LinearKernels {
    void (*exp)(const float* x, float* y, std::int64_t count);  // y = e^x; count a multiple of 8
    std::int64_t (*packed_bytes)(int type, std::int64_t rows, std::int64_t cols);
    int (*pack)(int type, std::int64_t rows, std::int64_t cols, const void* from, void* to,
                float* unit);
    void (*rows)(const kvik_matrix& matrix, const std::int64_t* ids, std::int64_t count,
                 float scale, float* out);
    void (*project)(const kvik_project_args& args, const float* x, std::int64_t n, float* out);
    void (*finish)(const kvik_finish_args& args, const float* mixed, const float* x,
                   std::int64_t n, float* out);
};

}  // namespace kvik
