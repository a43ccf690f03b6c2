// Whole layers: the kernels of linear maps and attention, one after another.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kvik_layers.h"
#include "runtime/cpu.h"

namespace {

// What the layers need between their kernels, kept from call to call.
struct Room {
    std::vector<float> projected, mixed, lse;

    static void grow(std::vector<float>& to, std::int64_t size) {
        to.resize(std::max(to.size(), static_cast<std::size_t>(size)));
    }
    void fit(const kvik_decoder_layer& layer, std::int64_t n) {
        grow(projected, n * kvik::width(*layer.before));
        grow(mixed, n * layer.layer->heads * layer.layer->v.dim);
        grow(lse, n * layer.layer->heads);
    }
};

void run(const kvik_decoder_layer& one, std::int64_t n, float* x, Room& room) {
    const kvik::Kernels& kernels = kvik::kernels();
    const kvik_project_args& before = *one.before;
    kernels.linear.project(before, x, n, room.projected.data());
    const float* const q = room.projected.data();
    const std::int64_t stride = kvik::width(before);
    kvik_step step{q, nullptr, nullptr, stride, stride, stride, one.cos, one.sin,
                   one.second_cos, one.second_sin, one.scratch, one.scratch_stride,
                   room.mixed.data(), room.lse.data()};
    if (before.count == 3) {
        step.k = q + before.matrices[0].rows;
        step.v = step.k + before.matrices[1].rows;
    }
    kernels.attention.paged(*one.batch, *one.layer, step);
    kernels.linear.finish(*one.after, room.mixed.data(), x, n, x);
}

}  // namespace

extern "C" void kvik_layers(const kvik_decoder_layer* layers, std::int64_t count, std::int64_t n,
                            float* x) {
    static thread_local Room room;
    for (std::int64_t i = 0; i < count; ++i) room.fit(layers[i], n);
    for (std::int64_t i = 0; i < count; ++i) run(layers[i], n, x, room);
}
