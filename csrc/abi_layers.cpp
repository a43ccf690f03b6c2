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
    void fit(const kvik_project_args& before, const kvik_layer& layer, std::int64_t n) {
        grow(projected, n * kvik::width(before));
        grow(mixed, n * layer.heads * layer.v.dim);
        grow(lse, n * layer.heads);
    }
};

void run(const kvik_layer_maps& maps, const kvik_layer& layer, const kvik_place& place,
         std::int64_t n, float* x, Room& room) {
    const kvik::Kernels& kernels = kvik::kernels();
    const kvik_project_args& before = *maps.before;
    kernels.linear.project(before, x, n, room.projected.data());
    const float* const q = room.projected.data();
    const std::int64_t stride = kvik::width(before);
    kvik_step step{q, nullptr, nullptr, stride, stride, stride, place.cos, place.sin,
                   place.second_cos, place.second_sin, place.scratch, place.scratch_stride,
                   room.mixed.data(), room.lse.data()};
    if (before.count == 3) {
        step.k = q + before.matrices[0].rows;
        step.v = step.k + before.matrices[1].rows;
    }
    kernels.attention.paged(*place.batch, layer, step);
    kernels.linear.finish(*maps.after, room.mixed.data(), x, n, x);
}

}  // namespace

extern "C" void kvik_layers(const kvik_layer_maps* maps, const kvik_layer_store* stores,
                            std::int64_t count, const kvik_place* places, std::int64_t n,
                            float* x) {
    static thread_local Room room;
    for (std::int64_t i = 0; i < count; ++i) room.fit(*maps[i].before, *stores[i].layer, n);
    for (std::int64_t i = 0; i < count; ++i)
        run(maps[i], *stores[i].layer, places[stores[i].place], n, x, room);
}
