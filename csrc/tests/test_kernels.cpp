// The kernels through the C ABI: right by plain arithmetic in double, and the same to the bit for
// every cut of the work and number of threads. Buffers are of exact size, for the sanitizers.
#include <algorithm>
#include <cmath>

#include "tests/cases.h"

namespace kvik::test {
namespace {

bool same(const float* a, const float* b, std::size_t count) {
    return !std::memcmp(a, b, count * sizeof(float));
}
bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && same(a.data(), b.data(), a.size());
}

// Row t of one sequence, from the numbers as they are.
std::vector<double> attention(const kvik_layer& layer, int dim, std::int64_t t, const float* q,
                              const float* k, const float* v) {
    std::vector<double> out;
    const int group = layer.heads / layer.kv_heads;
    const std::int64_t first = layer.window ? std::max<std::int64_t>(0, t - layer.window + 1) : 0;
    for (int h = 0; h < layer.heads; ++h) {
        std::vector<double> weight, sum(static_cast<std::size_t>(dim));
        const auto at = [&](const float* x, std::int64_t e) {
            return x + (e * layer.kv_heads + h / group) * dim;
        };
        double top = -INFINITY, all = 0.0;
        for (std::int64_t e = first; e <= t; ++e) {
            double score = 0.0;
            for (int d = 0; d < dim; ++d)
                score += double{q[(t * layer.heads + h) * dim + d]} * at(k, e)[d];
            weight.push_back(score * layer.scale);
            top = std::max(top, weight.back());
        }
        for (double& w : weight) all += w = std::exp(w - top);
        for (std::int64_t e = first; e <= t; ++e)
            for (int d = 0; d < dim; ++d) sum[d] += weight[e - first] / all * at(v, e)[d];
        out.insert(out.end(), sum.begin(), sum.end());
    }
    return out;
}

// How far a row may be from plain arithmetic: what rounding K and V costs, for numbers below 1.
double tolerance(const Shape& shape) {
    const double of[] = {2e-5, 1e-3, 8e-3, 1e-2, 1e-2, 2e-1, 2e-1};
    return of[shape.format_k] + of[shape.format_v];
}

void attend(const Shape& shape, std::uint64_t seed) {
    const std::vector<std::int64_t> lengths{1, 17, 270};
    const std::vector<std::int64_t> none{0, 0, 0}, ones{1, 1, 1};
    const int heads = shape.kv_heads * shape.group;
    const std::size_t q_row = static_cast<std::size_t>(heads) * shape.dim;
    const std::size_t k_row = static_cast<std::size_t>(shape.kv_heads) * shape.dim;
    const auto q = floats(288 * q_row, seed);
    const auto k = floats(288 * k_row, seed + 1), v = floats(288 * k_row, seed + 2);

    kvik_set_threads(1);
    Paged whole(shape, lengths);
    const auto expected = whole.attend(none, lengths, q.data(), k.data(), v.data());
    kvik_set_threads(3);
    Paged again(shape, lengths);
    CHECK(same(expected, again.attend(none, lengths, q.data(), k.data(), v.data())));

    // All but the last token of each at once, then the last ones together.
    Paged cut(shape, lengths);
    std::vector<float> q_last, k_last, v_last, last;
    std::vector<float> q_first, k_first, v_first;
    std::vector<std::int64_t> before;
    std::int64_t end = 0;
    for (std::int64_t length : lengths) {
        const std::int64_t begin = end;
        end += length;
        before.push_back(length - 1);
        const auto copy = [&](const std::vector<float>& from, std::size_t row,
                              std::vector<float>& first, std::vector<float>& final) {
            first.insert(first.end(), from.begin() + begin * row, from.begin() + (end - 1) * row);
            final.insert(final.end(), from.begin() + (end - 1) * row, from.begin() + end * row);
        };
        std::vector<float> rest;
        copy(q, q_row, q_first, q_last);
        copy(k, k_row, k_first, k_last);
        copy(v, k_row, v_first, v_last);
        copy(expected, q_row, rest, last);
    }
    cut.attend(none, before, q_first.data(), k_first.data(), v_first.data());
    CHECK(same(last, cut.attend(before, ones, q_last.data(), k_last.data(), v_last.data())));

    double worst = 0.0;
    std::int64_t begin = 0;
    for (std::int64_t length : lengths) {
        for (std::int64_t t : {std::int64_t{0}, length / 2, length - 1}) {
            const auto truth = attention(whole.layer, shape.dim, t, q.data() + begin * q_row,
                                         k.data() + begin * k_row, v.data() + begin * k_row);
            for (std::size_t i = 0; i < truth.size(); ++i)
                worst = std::max(worst, std::fabs(truth[i] - expected[(begin + t) * q_row + i]));
        }
        begin += length;
    }
    if (!(worst < tolerance(shape)))
        std::fprintf(stderr, "formats %d %d dim %d: off by %g\n", shape.format_k, shape.format_v,
                     shape.dim, worst);
    CHECK(worst < tolerance(shape));
}

void attention_of_all_formats() {
    std::uint64_t seed = 1;
    for (int k = KVIK_F32; k <= KVIK_UINT4; ++k)
        for (int v = KVIK_F32; v <= KVIK_UINT4; ++v)
            if (k == v || k == KVIK_INT8 || v == KVIK_INT4)
                attend({k, v, 64, 1, 2, 16, v == k ? 40 : 0}, seed += 3);
    attend({KVIK_INT8, KVIK_INT8, 64, 2, 3, 16}, seed += 3);
    for (int page_tokens : {1, 3, 16, 20})  // pages that part eight tokens
        for (int group = 1; group <= 5; ++group) {
            attend({KVIK_INT8, KVIK_UINT8, 64, 1, group, page_tokens, 37, 64}, seed += 3);
            attend({KVIK_INT4, KVIK_UINT4, 128, 1, group, page_tokens, 37}, seed += 3);
        }
    for (int dim : {64, 96, 128, 256})
        attend({KVIK_INT8, KVIK_INT8, dim, 2, 3, 16, 0, dim}, seed += 3);
    for (int dim : {16, 48, 96, 128, 256}) attend({KVIK_INT8, KVIK_INT4, dim, 1, 2, 32}, seed += 3);
}

// A long sequence beside a short one, whose heads share items of work: the same bits from every
// variant and number of threads.
void many_ranges(std::vector<std::vector<float>>& seen) {
    std::size_t at = 0;
    for (const int kv_heads : {1, 3, 5})
        for (const int group : {1, 4})
            for (const int dim : {64, 80, 128}) {
                const int v = dim % 32 ? KVIK_INT8 : KVIK_INT4;
                const Shape shape{KVIK_INT8, v, dim, kv_heads, group, 16, 0, dim == 80 ? 16 : dim};
                const std::size_t row = static_cast<std::size_t>(kv_heads) * dim;
                const auto k = floats(1802 * row, 11), q = floats(1802 * row * group, 12);
                for (const int threads : {1, 2, 3}) {
                    kvik_set_threads(threads);
                    Paged paged(shape, {1700, 102});
                    paged.layer.window = 1;  // while it is filled
                    paged.attend({0, 0}, {1699, 101}, q.data(), k.data(), k.data());
                    paged.layer.window = 0;
                    const auto out = paged.attend({1699, 101}, {1, 1}, q.data(), k.data(), k.data());
                    if (at == seen.size()) seen.push_back(out);
                    CHECK(same(seen[at], out));
                }
                ++at;
            }
}

void maps(const Type& type) {
    constexpr std::int64_t ROWS = 29, COLS = 512, N = 9;
    const Weights weights(type, ROWS, COLS, 7);
    CHECK(weights.packed);
    std::vector<std::int64_t> ids;
    for (std::int64_t r = 0; r < ROWS; ++r) ids.push_back(r);
    std::vector<float> dense(ROWS * COLS);
    kvik_rows(&weights.matrix, ids.data(), ROWS, 1.0f, dense.data());

    const auto x = floats(N * COLS, 8), bias = floats(ROWS, 9);
    kvik_project_args args = {};
    args.count = 2;
    args.matrices[0] = args.matrices[1] = weights.matrix;
    args.matrices[1].bias = bias.data();
    std::vector<float> out(N * 2 * ROWS), one(2 * ROWS);
    kvik_set_threads(3);
    kvik_project(&args, x.data(), N, out.data());
    kvik_set_threads(1);
    for (std::int64_t n = 0; n < N; ++n) {
        kvik_project(&args, x.data() + n * COLS, 1, one.data());
        CHECK(same(one.data(), out.data() + n * 2 * ROWS, 2 * ROWS));
    }
    for (std::int64_t n = 0; n < N; ++n)
        for (std::int64_t r = 0; r < ROWS; ++r) {
            double sum = 0.0, size = 0.0;
            for (std::int64_t c = 0; c < COLS; ++c) {
                const double term = double{dense[r * COLS + c]} * x[n * COLS + c];
                sum += term;
                size += std::fabs(term);
            }
            const float* found = out.data() + n * 2 * ROWS;
            CHECK(std::fabs(found[r] - sum) <= 2e-4 * size);
            CHECK(std::fabs(found[ROWS + r] - (sum + bias[r])) <= 2e-4 * size + 1e-6);
        }
}

void a_layer(const Type& type) {
    constexpr std::int64_t HIDDEN = 256, INNER = 512, N = 5;
    const Weights o(type, HIDDEN, HIDDEN, 1), gate(type, INNER, HIDDEN, 2);
    const Weights up(type, INNER, HIDDEN, 3), down(type, HIDDEN, INNER, 4);
    const auto norm = floats(HIDDEN, 5), mixed = floats(N * HIDDEN, 6), x = floats(N * HIDDEN, 7);
    kvik_finish_args args = {o.matrix, gate.matrix, up.matrix, down.matrix, {}, {}, {}, 0};
    for (int kind : {KVIK_SILU, KVIK_GELU_TANH}) {
        args.activation = kind;
        args.ffn = {norm.data(), 1e-6f};
        args.post_mixer = args.post_ffn = {kind == KVIK_SILU ? nullptr : norm.data(), 1e-6f};
        std::vector<float> out(N * HIDDEN), one(HIDDEN);
        kvik_set_threads(3);
        kvik_finish(&args, mixed.data(), x.data(), N, out.data());
        kvik_set_threads(1);
        for (std::int64_t n = 0; n < N; ++n) {
            kvik_finish(&args, mixed.data() + n * HIDDEN, x.data() + n * HIDDEN, 1, one.data());
            CHECK(same(one.data(), out.data() + n * HIDDEN, HIDDEN));
        }
        for (float y : out) CHECK(std::isfinite(y));
    }
}

void refusals() {
    CHECK(kvik_packed_bytes(8, 4, 33) == -1);
    CHECK(kvik_packed_bytes(999, 4, 32) == -1);
    const float broken[8] = {0, 1, 2, NAN, 4, 5, 6, 7};
    float to[64], unit;
    CHECK(kvik_pack(0, 1, 8, broken, to, &unit) == -1);
}

// Layers in one call against their kernels one by one: a prompt, then a token of each sequence.
void layers_at_once() {
    constexpr std::int64_t HIDDEN = 256, INNER = 512, LAYERS = 3;
    const Shape shape{KVIK_INT8, KVIK_INT4, 64, 2, 2, 16, 0, 32};
    const std::vector<std::int64_t> lengths{40, 1};
    struct One {
        Weights q, k, v, o, gate, up, down;
        std::vector<float> norm;
        kvik_project_args before = {};
        kvik_finish_args after;
        explicit One(std::uint64_t s)
            : q(named(), 256, HIDDEN, s), k(named(), 128, HIDDEN, s + 1), v(named(), 128, HIDDEN, s + 2),
              o(named(), HIDDEN, 256, s + 3), gate(named(), INNER, HIDDEN, s + 4),
              up(named(), INNER, HIDDEN, s + 5), down(named(), HIDDEN, INNER, s + 6),
              norm(floats(HIDDEN, s + 7)),
              after{o.matrix, gate.matrix, up.matrix, down.matrix, {}, {norm.data(), 1e-6f}, {}, 0} {
            before.norm = {norm.data(), 1e-6f};
            before.matrices[0] = q.matrix, before.matrices[1] = k.matrix;
            before.matrices[2] = v.matrix, before.count = 3;
        }
        static const Type& named() { return type_named("Q4_1"); }
    };
    std::vector<std::unique_ptr<One>> weights;
    std::vector<Paged> here, there;
    for (std::int64_t i = 0; i < LAYERS; ++i) {
        weights.emplace_back(new One(20 * static_cast<std::uint64_t>(i) + 1));
        here.emplace_back(shape, lengths);
        there.emplace_back(shape, lengths);
    }
    const std::vector<std::vector<std::int64_t>> starts{{0, 0}, {39, 0}}, rows{{0, 39}, {0, 1, 2}};
    for (std::size_t step = 0; step < 2; ++step) {
        std::vector<std::int64_t> start = starts[step];
        start.resize(rows[step].size() - 1);
        const std::int64_t n = rows[step].back();
        auto x = floats(static_cast<std::size_t>(n * HIDDEN), 99 + step), alone = x;
        std::vector<kvik_batch> batches;
        std::vector<kvik_layer_maps> maps;
        std::vector<kvik_layer_store> stores;
        std::vector<kvik_place> places(LAYERS);
        for (std::int64_t i = 0; i < LAYERS; ++i)
            batches.push_back(here[i].step_of(start, rows[step]));
        for (std::int64_t i = 0; i < LAYERS; ++i) {
            maps.push_back({&weights[i]->before, &weights[i]->after});
            stores.push_back({&here[i].layer, LAYERS - 1 - i});
            places[LAYERS - 1 - i].batch = &batches[i];
        }
        kvik_layers(maps.data(), stores.data(), LAYERS, places.data(), n, x.data());
        for (std::int64_t i = 0; i < LAYERS; ++i) {
            std::vector<float> parts(n * 512), mixed(n * 256), lse(n * 4), out(alone.size());
            kvik_project(&weights[i]->before, alone.data(), n, parts.data());
            const kvik_batch batch = there[i].step_of(start, rows[step]);
            kvik_step one = {};
            one.q = parts.data(), one.k = one.q + 256, one.v = one.k + 128;
            one.q_stride = one.k_stride = one.v_stride = 512;
            one.out = mixed.data(), one.lse = lse.data();
            kvik_attend(&batch, &there[i].layer, &one);
            kvik_finish(&weights[i]->after, mixed.data(), alone.data(), n, out.data());
            alone = out;
        }
        CHECK(same(x, alone));
    }
}

}  // namespace
}  // namespace kvik::test

int main() {
    using namespace kvik::test;
    std::vector<std::vector<float>> seen;
    for (int i = 0; const char* name = kvik_usable_variant(i); ++i) {
        kvik_select_variant(name);
        std::printf("%s\n", name);
        attention_of_all_formats();
        many_ranges(seen);
        layers_at_once();
        for (const Type& type : types()) {
            const int before = failures;
            maps(type);
            if (type.number != 0) a_layer(type);
            if (failures != before) std::fprintf(stderr, "%s, type %s\n", name, type.name);
        }
        refusals();
    }
    return result();
}
