// The wrappers of simd_*.h and math.h of one instruction set; KVIK_VARIANT is its namespace.
#include "tests/probe.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(KVIK_AVX2) || defined(KVIK_AVX512)
#include <immintrin.h>
#elif defined(KVIK_NEON)
#include <arm_neon.h>
#endif

#define KVIK_TEXT_(x) #x
#define KVIK_TEXT(x) KVIK_TEXT_(x)

namespace kvik::KVIK_VARIANT {
#include "kernels/simd.h"
#include "kernels/lanes.h"
#include "kernels/math.h"

namespace {
using test::In;
using test::Out;

void put(Out& out, f8 a) {
    float lanes[8];
    store(lanes, a);
    out.add(lanes, 8);
}
void put(Out& out, i8x a) {
    std::int32_t lanes[8];
    store(lanes, a);
    out.add(lanes, 8);
}
void put(Out& out, s16 a) {
    std::int16_t lanes[16];
    store(lanes, a);
    out.add(lanes, 16);
}
void put(Out& out, float a) { out.add(&a, 1); }

#define PROBE(name, floats, ...)                                                       \
    {name, floats, []([[maybe_unused]] const In& in, [[maybe_unused]] Out& out) {      \
         __VA_ARGS__;                                                                  \
     }}
#define FLOATS(name, ...) PROBE(name, true, __VA_ARGS__)
#define BITS(name, ...) PROBE(name, false, __VA_ARGS__)

const test::Probe list[] = {
    BITS("load and store", put(out, load(in.f[0])), put(out, load(in.i[0])),
         put(out, load(in.s[0]))),
    BITS("splat", put(out, splat(in.f[0][3])), put(out, zero()), put(out, izero())),
    FLOATS("+", put(out, load(in.f[0]) + load(in.f[1]))),
    FLOATS("-", put(out, load(in.f[0]) - load(in.f[1]))),
    FLOATS("*", put(out, load(in.f[0]) * load(in.f[1]))),
    FLOATS("/", put(out, load(in.f[0]) / load(in.f[1]))),
    FLOATS("fma", put(out, fma(load(in.f[0]), load(in.f[1]), load(in.f[2])))),
    FLOATS("fma of finite", put(out, fma(load(in.ordered[0]), load(in.ordered[1]), zero()))),
    BITS("max", put(out, max(load(in.f[0]), load(in.f[1])))),
    BITS("min", put(out, min(load(in.f[0]), load(in.f[1])))),
    BITS("abs", put(out, abs(load(in.f[0])))),
    FLOATS("round", put(out, round(load(in.f[0]))), put(out, round(load(in.small)))),
    BITS("between", put(out, between(0, 8, load(in.f[0]), load(in.f[1]))),
         put(out, between(2, 5, load(in.f[0]), load(in.f[1]))),
         put(out, between(-3, 1, load(in.f[0]), load(in.f[1]))),
         put(out, between(6, 99, load(in.f[0]), load(in.f[1]))),
         put(out, between(5, 5, load(in.f[0]), load(in.f[1])))),
    FLOATS("sum", put(out, sum(load(in.f[0]))), put(out, sum(load(in.ordered[0])))),
    FLOATS("top", put(out, top(load(in.ordered[0])))),
    BITS("zero_below", put(out, zero_below(load(in.f[0]), load(in.f[1]), load(in.f[2])))),
    BITS("power", put(out, power(load(in.whole)))),
    BITS("+ of integers", put(out, load(in.i[0]) + load(in.i[1]))),
    BITS("to_float", put(out, to_float(load(in.i[0])))),
    BITS("to_int", put(out, to_int(load(in.small)))),
    BITS("pair_sums", put(out, pair_sums(load(in.i[0]), load(in.i[1])))),
    BITS("lower and upper", put(out, lower(load(in.i[0]), load(in.i[1])));
         put(out, upper(load(in.i[0]), load(in.i[1])))),
    BITS("in_order", i8x a = load(in.i[0]); in_order(a); put(out, a)),
    BITS("splat_pair", put(out, splat_pair(in.s[0] + 5))),
    BITS("widen", put(out, widen(reinterpret_cast<const std::int8_t*>(in.bytes[0] + 3)))),
    BITS("dot", put(out, dot(load(in.s[0]), load(in.s[1]), load(in.i[0])))),
    BITS("add_dot", i8x sum = load(in.i[0]); add_dot(load(in.s[0]), load(in.s[1]), sum);
         put(out, sum)),
    BITS("load_bytes", put(out, load_bytes(in.bytes[0] + 1))),
    BITS("nibbles16", const s16 a = load_bytes(in.bytes[0]); put(out, nibbles16<0>(a));
         put(out, nibbles16<4>(a)); put(out, nibbles16<8>(a)); put(out, nibbles16<12>(a))),
    BITS("load_half", put(out, load_half(in.h))),
    BITS("store_half", std::uint16_t h[8]; store_half(h, load(in.f[0])); out.add(h, 8)),
    BITS("load_bfloat", put(out, load_bfloat(in.h))),
    BITS("transpose_pairs", const std::uint8_t* rows[8];
         for (int t = 0; t < 8; ++t) rows[t] = in.bytes[t]; std::int16_t to[8 * 24] = {};
         transpose_pairs<true>(rows, 7, to, 24); out.add(to, 8 * 24);
         transpose_pairs<false>(rows, 7, to, 16); out.add(to, 8 * 16)),
    BITS("unzip", f8 even; f8 odd; unzip(load(in.ordered[0]), load(in.ordered[1]), even, odd);
         put(out, even); put(out, odd)),
    BITS("transpose", f8 a[8]; for (int t = 0; t < 8; ++t) a[t] = load(in.ordered[t]);
         transpose(a); for (int t = 0; t < 8; ++t) put(out, a[t])),
    BITS("split_nibbles", std::uint8_t to[32]; split_nibbles<0>(in.bytes[0] + 1, to);
         out.add(to, 32); split_nibbles<8>(in.bytes[0] + 1, to); out.add(to, 32)),
    BITS("pair_up", s16 first; s16 last; pair_up<true>(in.bytes[0] + 1, in.bytes[1] + 3, first, last);
         put(out, first); put(out, last);
         pair_up<false>(in.bytes[0] + 1, in.bytes[1] + 3, first, last); put(out, first);
         put(out, last)),
    BITS("store_narrow", std::int16_t to[8]; store_narrow(to, load(in.narrow)); out.add(to, 8)),
    BITS("prefetch", prefetch(in.bytes)),
};

void exp_all(const float* x, float* y, int count) {
    for (int i = 0; i < count; i += 8) store(y + i, exp(load(x + i)));
}
void tanh_all(const float* x, float* y, int count) {
    for (int i = 0; i < count; i += 8) store(y + i, tanh(load(x + i)));
}
float half_in(std::uint16_t h) { return from_half(h); }
std::uint16_t half_out(float a) { return to_half(a); }
}  // namespace

extern const test::Probes probes;
const test::Probes probes{KVIK_TEXT(KVIK_VARIANT), list,    sizeof list / sizeof *list, exp_all,
                          tanh_all,                half_in, half_out};
}  // namespace kvik::KVIK_VARIANT
