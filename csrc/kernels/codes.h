// What unpacking weights needs beyond simd.h; included inside a variant's namespace.

#if defined(KVIK_AVX2) || defined(KVIK_AVX512)
static inline s16 operator|(s16 a, s16 b) { return {_mm256_or_si256(a.v, b.v)}; }
// 16 where bit T of a 16-bit number is set, else 0.
template <int T>
static inline s16 bit_as_16(s16 a) {
    const __m256i moved = T < 4 ? _mm256_slli_epi16(a.v, T < 4 ? 4 - T : 0)
                                : _mm256_srli_epi16(a.v, T < 4 ? 0 : T - 4);
    return {_mm256_and_si256(moved, _mm256_set1_epi16(16))};
}
// table[a] for 16-bit numbers a < 16; `table` is the same 16 bytes twice, the first of them 0.
static inline s16 lookup(const std::uint8_t table[32], s16 a) {
    return {_mm256_shuffle_epi8(load_bytes(table).v, a.v)};
}
#else
template <class F>
static inline s16 each(s16 a, F&& f) {
    std::int16_t x[16];
    store(x, a);
    for (int i = 0; i < 16; ++i) x[i] = static_cast<std::int16_t>(f(i, static_cast<std::uint16_t>(x[i])));
    return load(x);
}
static inline s16 operator|(s16 a, s16 b) {
    std::int16_t y[16];
    store(y, b);
    return each(a, [&](int i, int x) { return x | y[i]; });
}
template <int T>
static inline s16 bit_as_16(s16 a) {
    return each(a, [](int, int x) { return (x >> T & 1) << 4; });
}
static inline s16 lookup(const std::uint8_t table[32], s16 a) {
    return each(a, [&](int, int x) { return static_cast<int>(table[x & 15]); });
}
#endif
