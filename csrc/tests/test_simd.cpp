// Every wrapper of every variant that this machine can run does what the scalar one does.
#include <cmath>
#include <limits>
#include <vector>

#include "kvik.h"
#include "tests/check.h"
#include "tests/probe.h"

#define KVIK_DECLARE(name) namespace kvik::name { extern const test::Probes probes; }
KVIK_DECLARE(scalar)
#if defined(KVIK_HAS_AVX2)
KVIK_DECLARE(avx2)
#endif
#if defined(KVIK_HAS_AVX512)
KVIK_DECLARE(avx512)
#endif
#if defined(KVIK_HAS_NEON)
KVIK_DECLARE(neon)
#endif

namespace kvik::test {
namespace {

const Probes& reference = scalar::probes;

// The variants that can run here, the scalar one left out.
std::vector<const Probes*> others() {
    std::vector<const Probes*> all;
#if defined(KVIK_HAS_AVX2)
    all.push_back(&avx2::probes);
#endif
#if defined(KVIK_HAS_AVX512)
    all.push_back(&avx512::probes);
#endif
#if defined(KVIK_HAS_NEON)
    all.push_back(&neon::probes);
#endif
    std::vector<const Probes*> found;
    for (const Probes* one : all)
        if (kvik_select_variant(one->name) == 0) found.push_back(one);
    return found;
}

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float NAN_ = std::numeric_limits<float>::quiet_NaN();
const float EDGES[] = {0.0f,     -0.0f,    1.0f,      -1.0f,     INF,       -INF,     NAN_,
                       -NAN_,    0x1p-149f, -0x1p-149f, 0x1p-126f, 0x1p-127f, 3.4e38f,  -3.4e38f,
                       65504.0f, 65519.9f, 65520.0f,  0x1p-14f,  0x1p-24f,  0x1p-25f, 0x1.8p-25f,
                       0.5f,     1.5f,     2.5f,      -2.5f,     8388607.5f, 88.0f,   -87.4f};

float anything(Random& draw) {
    switch (draw.whole(0, 3)) {
        case 0: return EDGES[draw.whole(0, sizeof EDGES / sizeof *EDGES - 1)];
        case 1: return float_of(static_cast<std::uint32_t>(draw.bits()));
        case 2: return draw.real() * 70000.0f;  // about where halves end
        default: return draw.real();
    }
}

In input(Random& draw) {
    In in;
    for (auto& row : in.f)
        for (float& x : row) x = anything(draw);
    for (auto& row : in.ordered)
        for (float& x : row) x = draw.real() * float_of(static_cast<std::uint32_t>(
                                     draw.whole(64, 190) << 23));
    for (float& x : in.whole) x = static_cast<float>(draw.whole(-126, 127));
    // Ties too: the halves are exact.
    for (float& x : in.small) x = static_cast<float>(draw.whole(-4000000, 4000000)) * 0.5f;
    in.small[0] = draw.real() * 2.1e9f;
    for (auto& row : in.i)
        for (std::int32_t& x : row) x = static_cast<std::int32_t>(draw.whole(-(1 << 27), 1 << 27));
    for (std::int32_t& x : in.narrow) x = static_cast<std::int32_t>(draw.whole(-32768, 32767));
    for (auto& row : in.s)
        for (std::int16_t& x : row) x = static_cast<std::int16_t>(draw.whole(-16384, 16384));
    for (std::uint16_t& x : in.h) x = static_cast<std::uint16_t>(draw.bits());
    for (auto& row : in.bytes)
        for (std::uint8_t& x : row) x = static_cast<std::uint8_t>(draw.bits());
    return in;
}

bool same(const Out& a, const Out& b, bool floats) {
    if (a.size != b.size) return false;
    if (!floats) return !std::memcmp(a.bytes, b.bytes, a.size);
    for (std::size_t i = 0; i < a.size; i += 4) {
        float x, y;
        std::memcpy(&x, a.bytes + i, 4);
        std::memcpy(&y, b.bytes + i, 4);
        if (x != y && !(std::isnan(x) && std::isnan(y))) return false;
    }
    return true;
}

void wrappers(const Probes& variant) {
    CHECK(variant.count == reference.count);
    Random draw(1);
    std::vector<bool> wrong(static_cast<std::size_t>(reference.count));
    for (int round = 0; round < 4000; ++round) {
        const In in = input(draw);
        for (int p = 0; p < reference.count; ++p) {
            Out expected, found;
            reference.all[p].run(in, expected);
            variant.all[p].run(in, found);
            if (!same(expected, found, reference.all[p].floats)) wrong[p] = true;
        }
    }
    for (int p = 0; p < reference.count; ++p)
        check(!wrong[p], reference.all[p].name, variant.name, 0);
}

void halves(const Probes& variant) {
    for (std::uint32_t h = 0; h < 65536; ++h) {
        const auto half = static_cast<std::uint16_t>(h);
        const float value = variant.from_half(half);
        CHECK(bits_of(value) == bits_of(reference.from_half(half)));
        const bool nan = (h & 0x7fff) > 0x7c00;
        CHECK(variant.to_half(value) == (nan ? (h | 0x200) : h));
        // Half-way to the next half and its neighbours, where rounding is decided.
        for (std::uint32_t bits : {0xfffu, 0x1000u, 0x1001u}) {
            const float near = float_of(bits_of(value) + bits);
            CHECK(variant.to_half(near) == reference.to_half(near));
        }
    }
}

// What the scalar conversion means, by arithmetic in double.
void scalar_halves() {
    for (std::uint32_t h = 0; h < 0x7c00; ++h) {
        const int exponent = static_cast<int>(h >> 10);
        const double fraction = (h & 0x3ff) / 1024.0;
        const double value =
            exponent ? std::ldexp(1.0 + fraction, exponent - 15) : std::ldexp(fraction, -14);
        CHECK(reference.from_half(static_cast<std::uint16_t>(h)) == value);
    }
    CHECK(reference.from_half(0x7c00) == INF);
    CHECK(reference.from_half(0xfc00) == -INF);
    CHECK(std::isnan(reference.from_half(0x7c01)));
}

void exponentials(const Probes& variant) {
    std::vector<float> x;
    for (std::uint32_t bits = 0; bits < 0xff900000u; bits += 40009) x.push_back(float_of(bits));
    for (float edge : EDGES) x.push_back(edge);
    for (float edge : {-87.33654f, -87.33655f, -87.3365f, 88.02f, 88.5f, 1e-8f}) x.push_back(edge);
    while (x.size() % 8) x.push_back(0.0f);
    std::vector<float> y(x.size()), expected(x.size());
    const int count = static_cast<int>(x.size());

    variant.exp(x.data(), y.data(), count);
    reference.exp(x.data(), expected.data(), count);
    for (int i = 0; i < count; ++i) {
        if (std::isnan(x[i])) {
            CHECK(std::isnan(y[i]));
            continue;
        }
        CHECK(bits_of(y[i]) == bits_of(expected[i]));
        if (x[i] <= -87.4f) CHECK(y[i] == 0.0f);
        if (x[i] == 0.0f) CHECK(y[i] == 1.0f);
        if (x[i] >= -87.3f && x[i] <= 88.0f) {
            const double truth = std::exp(static_cast<double>(x[i]));
            CHECK(std::fabs(y[i] - truth) < 3e-7 * truth);
        }
    }
    variant.tanh(x.data(), y.data(), count);
    reference.tanh(x.data(), expected.data(), count);
    for (int i = 0; i < count; ++i) {
        if (std::isnan(x[i])) {
            CHECK(std::isnan(y[i]));
            continue;
        }
        CHECK(bits_of(y[i]) == bits_of(expected[i]));
        CHECK(std::fabs(y[i] - std::tanh(static_cast<double>(x[i]))) < 1e-6);
    }
}

}  // namespace
}  // namespace kvik::test

int main() {
    using namespace kvik::test;
    scalar_halves();
    halves(reference);
    exponentials(reference);
    for (const Probes* variant : others()) {
        std::printf("%s\n", variant->name);
        wrappers(*variant);
        halves(*variant);
        exponentials(*variant);
    }
    return result();
}
