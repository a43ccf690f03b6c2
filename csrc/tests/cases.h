// Sequences in pages, and packed weights, as the kernels take them; shared by tests and counting.
#pragma once
#include <memory>
#include <vector>

#include "kvik_layers.h"
#include "tests/check.h"

namespace kvik::test {

inline std::vector<float> floats(std::size_t count, std::uint64_t seed) {
    Random draw(seed);
    std::vector<float> values(count);
    for (float& value : values) value = draw.real();
    return values;
}

struct Shape {
    int format_k, format_v, dim, kv_heads, group, page_tokens;
    std::int64_t window = 0;
    int channels = 32;  // that share a scale, where the dim is a multiple of it
};

// A pool of exactly the pages that the sequences need, taken from its end, so that a sanitizer
// sees what is written or read past them.
class Paged {
public:
    Paged(const Shape& shape, const std::vector<std::int64_t>& lengths) : shape_(shape) {
        std::int64_t bytes = 0;
        layer = {};
        layer.k = stream(shape.format_k, bytes);
        layer.v = stream(shape.format_v, bytes);
        layer.heads = shape.kv_heads * shape.group;
        layer.kv_heads = shape.kv_heads;
        layer.page_tokens = shape.page_tokens;
        layer.scale = 0.3f;
        layer.window = shape.window;
        const std::int64_t rows = (bytes + 63) / 64;
        std::int64_t pages = 0;
        table_.push_back(0);
        for (std::int64_t length : lengths) {
            const std::int64_t mine = (length + shape.page_tokens - 1) / shape.page_tokens;
            for (std::int64_t p = 0; p < mine; ++p) {
                numbers_.push_back(static_cast<std::int32_t>(p));
                refs_.push_back(static_cast<std::int32_t>(pages++ * rows));
            }
            table_.push_back(pages);
        }
        for (std::int32_t& ref : refs_) ref = static_cast<std::int32_t>((pages - 1) * rows) - ref;
        pool_.reset(new std::uint8_t[static_cast<std::size_t>(pages * rows * 64)]());
    }

    // Attention of `count[b]` tokens of each sequence from position `start[b]` on. q, k and v
    // begin with the first of them; the result is [tokens, heads, dim].
    std::vector<float> attend(const std::vector<std::int64_t>& start,
                              const std::vector<std::int64_t>& count, const float* q,
                              const float* k, const float* v) {
        std::vector<std::int64_t> row{0};
        for (std::int64_t c : count) row.push_back(row.back() + c);
        const auto n = static_cast<std::size_t>(row.back());
        const std::size_t heads = static_cast<std::size_t>(layer.heads);
        std::vector<float> out(n * heads * shape_.dim), lse(n * heads);
        const kvik_batch batch = step_of(start, row);
        kvik_step step = {};
        step.q = q, step.k = k, step.v = v;
        step.q_stride = std::int64_t{layer.heads} * shape_.dim;
        step.k_stride = step.v_stride = std::int64_t{layer.kv_heads} * shape_.dim;
        step.out = out.data(), step.lse = lse.data();
        kvik_attend(&batch, &layer, &step);
        return out;
    }

    // Tokens row[b] .. row[b + 1] of sequence b, from position start[b] on.
    kvik_batch step_of(const std::vector<std::int64_t>& start,
                       const std::vector<std::int64_t>& row) const {
        return {static_cast<std::int64_t>(start.size()), row.data(), start.data(), table_.data(),
                numbers_.data(), refs_.data(), pool_.get()};
    }

    kvik_layer layer;

private:
    kvik_stream stream(int format, std::int64_t& bytes) const {
        const std::int64_t tokens = std::int64_t{shape_.kv_heads} * shape_.page_tokens;
        kvik_stream s = {};
        s.format = format;
        s.dim = shape_.dim;
        s.group = format >= KVIK_INT8 ? shape_.channels : shape_.dim;
        if (s.dim % s.group) s.group = 16;
        const int bits = format == KVIK_F32                            ? 32
                         : format == KVIK_F16 || format == KVIK_BF16   ? 16
                         : format == KVIK_INT8 || format == KVIK_UINT8 ? 8
                                                                       : 4;
        s.code = bytes, bytes += tokens * s.dim * bits / 8;
        const std::int64_t scales = 2 * tokens * (s.dim / s.group);
        if (format >= KVIK_INT8) s.scale = bytes, bytes += scales;
        if (format == KVIK_UINT8 || format == KVIK_UINT4) s.low = bytes, bytes += scales;
        return s;
    }

    Shape shape_;
    std::vector<std::int64_t> table_;
    std::vector<std::int32_t> numbers_, refs_;
    std::unique_ptr<std::uint8_t[]> pool_;
};

// A GGUF tensor type: bytes and inputs of a block, and where its halves (scales) are.
struct Type {
    const char* name;
    int number, bytes, inputs;
    std::vector<int> halves;
};
inline const std::vector<Type>& types() {
    static const std::vector<Type> all = {
        {"F32", 0, 4, 1, {}},          {"F16", 1, 2, 1, {0}},        {"Q4_0", 2, 18, 32, {0}},
        {"Q4_1", 3, 20, 32, {0, 2}},   {"Q5_0", 6, 22, 32, {0}},     {"Q5_1", 7, 24, 32, {0, 2}},
        {"Q8_0", 8, 34, 32, {0}},      {"Q4_K", 12, 144, 256, {0, 2}}, {"Q5_K", 13, 176, 256, {0, 2}},
        {"Q6_K", 14, 210, 256, {208}}, {"IQ4_NL", 20, 18, 32, {0}},  {"IQ4_XS", 23, 136, 256, {0}},
        {"BF16", 30, 2, 1, {}}};
    return all;
}
inline const Type& type_named(const char* name) {
    for (const Type& one : types())
        if (!std::strcmp(one.name, name)) return one;
    return types()[0];
}

// Random blocks with small finite scales, packed.
class Weights {
public:
    Weights(const Type& type, std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
        Random draw(seed);
        const std::size_t blocks = static_cast<std::size_t>(rows * cols / type.inputs);
        std::vector<std::uint8_t> file(blocks * type.bytes);
        for (std::size_t b = 0; b < blocks; ++b) {
            std::uint8_t* block = file.data() + b * type.bytes;
            if (type.number == 0) {
                const float value = draw.real();
                std::memcpy(block, &value, 4);
                continue;
            }
            for (int i = 0; i < type.bytes; ++i) block[i] = static_cast<std::uint8_t>(draw.bits());
            if (type.number == 30) block[1] = static_cast<std::uint8_t>(draw.whole(0x3c, 0x3f));
            for (int at : type.halves)  // between 2^-9 and 2^-5
                block[at + 1] = static_cast<std::uint8_t>(draw.whole(0x18, 0x27));
        }
        const std::int64_t bytes = kvik_packed_bytes(type.number, rows, cols);
        data_.reset(new std::uint8_t[static_cast<std::size_t>(bytes)]);
        float unit = 0.0f;
        packed = kvik_pack(type.number, rows, cols, file.data(), data_.get(), &unit) == 0;
        matrix = {data_.get(), nullptr, rows, cols, type.number, unit};
    }

    kvik_matrix matrix;
    bool packed;

private:
    std::unique_ptr<std::uint8_t[]> data_;
};

}  // namespace kvik::test
