// Kernels that are written once for eight lanes and, where registers have them, sixteen; included
// inside a variant's namespace after simd.h.

static inline i8x isplat(std::int32_t a) {
    std::int32_t lanes[8] = {a, a, a, a, a, a, a, a};
    return load(lanes);
}

template <class F>
struct Lanes;
template <>
struct Lanes<f8> {
    using Ints = i8x;
    using Pairs = s16;
    static constexpr int COUNT = 8;
    static f8 all(float a) { return splat(a); }
    static f8 load(const float* p) { return KVIK_VARIANT::load(p); }
    static Ints none() { return izero(); }
    static Ints all_ints(std::int32_t a) { return isplat(a); }
    static Pairs pairs(const std::int16_t* p) { return KVIK_VARIANT::load(p); }
    static Pairs all_pairs(const std::int16_t* p) { return splat_pair(p); }
    template <class G>
    static void each_8(f8 a, const G& g) {
        g(a);
    }
};
#if defined(KVIK_AVX512)
template <>
struct Lanes<f16x> {
    using Ints = i16x;
    using Pairs = s32x;
    static constexpr int COUNT = 16;
    static f16x all(float a) { return splat_16(a); }
    static f16x load(const float* p) { return load_16(p); }
    static Ints none() { return izero_16(); }
    static Ints all_ints(std::int32_t a) { return isplat_16(a); }
    static Pairs pairs(const std::int16_t* p) { return load_16(p); }
    static Pairs all_pairs(const std::int16_t* p) { return splat_pair_16(p); }
    template <class G>
    static void each_8(f16x a, const G& g) {
        g(first_8(a));
        g(last_8(a));
    }
};
using Widest = f16x;
#else
using Widest = f8;
#endif
constexpr int LANES = Lanes<Widest>::COUNT;
