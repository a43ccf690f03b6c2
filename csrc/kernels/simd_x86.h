// AVX2 + FMA + F16C; with KVIK_AVX512 also VNNI on 256-bit registers.
struct f8 { __m256 v; };
struct i8x { __m256i v; };   // 8 x int32
struct s16 { __m256i v; };   // 16 x int16

static inline f8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
static inline void store(float* p, f8 a) { _mm256_storeu_ps(p, a.v); }
static inline f8 splat(float a) { return {_mm256_set1_ps(a)}; }
static inline f8 zero() { return {_mm256_setzero_ps()}; }
static inline f8 operator+(f8 a, f8 b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline f8 operator-(f8 a, f8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline f8 operator*(f8 a, f8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline f8 operator/(f8 a, f8 b) { return {_mm256_div_ps(a.v, b.v)}; }
static inline f8 fma(f8 a, f8 b, f8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }  // a*b + c
static inline f8 max(f8 a, f8 b) { return {_mm256_max_ps(a.v, b.v)}; }
static inline f8 min(f8 a, f8 b) { return {_mm256_min_ps(a.v, b.v)}; }
static inline f8 abs(f8 a) {
    return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)};
}
static inline f8 round(f8 a) {  // to nearest, ties to even
    return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// The lanes from `low` up to `high` of `a`, the others of `b`.
static inline f8 between(int low, int high, f8 a, f8 b) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i in = _mm256_and_si256(_mm256_cmpgt_epi32(lane, _mm256_set1_epi32(low - 1)),
                                        _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lane));
    return {_mm256_blendv_ps(b.v, a.v, _mm256_castsi256_ps(in))};
}
// ((a0+a4)+(a2+a6)) + ((a1+a5)+(a3+a7))
static inline float sum(f8 a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
static inline float top(f8 a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
// 0 where x < low, a elsewhere (also where x is NaN).
static inline f8 zero_below(f8 x, f8 low, f8 a) {
    return {_mm256_andnot_ps(_mm256_cmp_ps(x.v, low.v, _CMP_LT_OQ), a.v)};
}
// 2^n for whole n in [-126, 127].
static inline f8 power(f8 n) {
    const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(e, 23))};
}

static inline i8x izero() { return {_mm256_setzero_si256()}; }
static inline i8x operator+(i8x a, i8x b) { return {_mm256_add_epi32(a.v, b.v)}; }
static inline f8 to_float(i8x a) { return {_mm256_cvtepi32_ps(a.v)}; }
static inline i8x to_int(f8 a) { return {_mm256_cvtps_epi32(a.v)}; }  // to nearest, ties to even
static inline i8x load(const std::int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
static inline void store(std::int32_t* p, i8x a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v);
}
// Keeps the compiler from loading many operands ahead of their use, which costs it its registers.
static inline void in_order(i8x& a) { asm volatile("" : "+x"(a.v)); }
// Sums of neighbouring lanes, in each half those of a, then those of b.
static inline i8x pair_sums(i8x a, i8x b) { return {_mm256_hadd_epi32(a.v, b.v)}; }
// The lower halves of a and b; the upper ones.
static inline i8x lower(i8x a, i8x b) { return {_mm256_permute2x128_si256(a.v, b.v, 0x20)}; }
static inline i8x upper(i8x a, i8x b) { return {_mm256_permute2x128_si256(a.v, b.v, 0x31)}; }

static inline s16 load(const std::int16_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
static inline void store(std::int16_t* p, s16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v);
}
// The pair of 16-bit numbers at p in all eight lanes.
static inline s16 splat_pair(const std::int16_t* p) {
    std::int32_t pair;
    std::memcpy(&pair, p, 4);
    return {_mm256_set1_epi32(pair)};
}
static inline s16 widen(const std::int8_t* p) {  // 16 of them
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
// c + the sums of products of neighbouring pairs.
static inline i8x dot(s16 a, s16 b, i8x c) {
#if defined(KVIK_AVX512)
    return {_mm256_dpwssd_epi32(c.v, a.v, b.v)};
#else
    return {_mm256_add_epi32(c.v, _mm256_madd_epi16(a.v, b.v))};
#endif
}
// c += the same, in place and in this order, as a compiler short of registers does not by itself.
static inline void add_dot(s16 a, s16 b, i8x& c) {
#if defined(KVIK_AVX512)
    c = dot(a, b, c);
#else
    const __m256i products = _mm256_madd_epi16(a.v, b.v);
    asm volatile("vpaddd %1, %0, %0" : "+x"(c.v) : "x"(products));
#endif
}
// Thirty-two bytes.
static inline s16 load_bytes(const std::uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
// The low nibble of both 16-bit numbers of each lane after shifting each lane right by SHIFT.
template <int SHIFT>
static inline s16 nibbles16(s16 a) {
    const __m256i x = SHIFT ? _mm256_srli_epi16(a.v, SHIFT) : a.v;
    return {SHIFT == 12 ? x : _mm256_and_si256(x, _mm256_set1_epi16(15))};
}
static inline f8 load_half(const std::uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
static inline void store_half(std::uint16_t* p, f8 a) {  // to nearest, ties to even
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
static inline float from_half(std::uint16_t h) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
static inline std::uint16_t to_half(float a) {
    return static_cast<std::uint16_t>(
        _mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(a), _MM_FROUND_TO_NEAREST_INT)));
}
static inline f8 load_bfloat(const std::uint16_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16))};
}
static inline void prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

// Eight tokens' codes [8][16], from src[i] + at, as pairs of neighbours: row j of the result, at
// to + j * stride, holds pair j of all eight tokens, widened to 16 bits, unsigned ones less 128.
template <bool SIGNED>
static inline void transpose_pairs(const std::uint8_t* const src[8], int at, std::int16_t* to,
                                   int stride) {
    __m128i x[8], y[8];
    for (int i = 0; i < 8; ++i)
        x[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src[i] + at));
    for (int i = 0; i < 4; ++i) {
        y[2 * i] = _mm_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
        y[2 * i + 1] = _mm_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        x[4 * i] = _mm_unpacklo_epi32(y[4 * i], y[4 * i + 2]);
        x[4 * i + 1] = _mm_unpackhi_epi32(y[4 * i], y[4 * i + 2]);
        x[4 * i + 2] = _mm_unpacklo_epi32(y[4 * i + 1], y[4 * i + 3]);
        x[4 * i + 3] = _mm_unpackhi_epi32(y[4 * i + 1], y[4 * i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        y[2 * i] = _mm_unpacklo_epi64(x[i], x[i + 4]);
        y[2 * i + 1] = _mm_unpackhi_epi64(x[i], x[i + 4]);
    }
    for (int j = 0; j < 8; ++j) {
        if (!SIGNED) y[j] = _mm_xor_si128(y[j], _mm_set1_epi8(-128));
        const __m256i wide = _mm256_cvtepi8_epi16(y[j]);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + j * stride), wide);
    }
}
// The even lanes of a, then of b; the odd ones.
static inline void unzip(f8 a, f8 b, f8& even, f8& odd) {
    const auto in_order_of_lanes = [](__m256 x) {
        return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8));
    };
    even.v = in_order_of_lanes(_mm256_shuffle_ps(a.v, b.v, 0x88));
    odd.v = in_order_of_lanes(_mm256_shuffle_ps(a.v, b.v, 0xdd));
}
// Row i of the result is column i of x.
static inline void transpose(f8 x[8]) {
    __m256 a[8], b[8];
    for (int i = 0; i < 4; ++i) {
        a[2 * i] = _mm256_unpacklo_ps(x[2 * i].v, x[2 * i + 1].v);
        a[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i].v, x[2 * i + 1].v);
    }
    for (int i = 0; i < 2; ++i) {
        b[4 * i] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
        b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
        b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
        b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        x[i].v = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        x[i + 4].v = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}
// Sixteen bytes of two 4-bit codes each, as 32 bytes of a code less LESS, the low half of each first.
template <int LESS>
static inline void split_nibbles(const std::uint8_t* from, std::uint8_t* to) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i mask = _mm_set1_epi8(15), less = _mm_set1_epi8(LESS);
    const __m128i low = _mm_and_si128(v, mask), high = _mm_and_si128(_mm_srli_epi16(v, 4), mask);
    const auto put = [&](__m128i codes, std::uint8_t* at) {
        if (LESS) codes = _mm_sub_epi8(codes, less);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at), codes);
    };
    put(_mm_unpacklo_epi8(low, high), to);
    put(_mm_unpackhi_epi8(low, high), to + 16);
}
// Sixteen bytes at a and at b, widened, unsigned ones less 128: a pair of each two, those of the
// first eight and the last.
template <bool SIGNED>
static inline void pair_up(const std::uint8_t* a, const std::uint8_t* b, s16& first, s16& last) {
    __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
    __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b));
    if (!SIGNED) {
        const __m128i turned = _mm_set1_epi8(-128);
        x = _mm_xor_si128(x, turned), y = _mm_xor_si128(y, turned);
    }
    first.v = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(x, y));
    last.v = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(x, y));
}
// Eight 32-bit numbers that fit, as 16-bit ones.
static inline void store_narrow(std::int16_t* p, i8x a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packs_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1)));
}

#if defined(KVIK_AVX512)
// Sixteen floats, where there is something to gain from them: the same arithmetic twice.
struct f16x { __m512 v; };

static inline f16x load_16(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, f16x a) { _mm512_storeu_ps(p, a.v); }
static inline f16x splat_16(float a) { return {_mm512_set1_ps(a)}; }
static inline f16x operator+(f16x a, f16x b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline f16x operator-(f16x a, f16x b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline f16x operator*(f16x a, f16x b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline f16x fma(f16x a, f16x b, f16x c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline f16x max(f16x a, f16x b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline f16x min(f16x a, f16x b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline f16x round(f16x a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline f16x zero_below(f16x x, f16x low, f16x a) {
    return {_mm512_mask_mov_ps(a.v, _mm512_cmp_ps_mask(x.v, low.v, _CMP_LT_OQ), _mm512_setzero_ps())};
}
static inline f16x power(f16x n) {
    const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
}
struct i16x { __m512i v; };  // 16 x int32
struct s32x { __m512i v; };  // 32 x int16
static inline s32x load_16(const std::int16_t* p) { return {_mm512_loadu_si512(p)}; }
static inline s32x splat_pair_16(const std::int16_t* p) {
    std::int32_t pair;
    std::memcpy(&pair, p, 4);
    return {_mm512_set1_epi32(pair)};
}
static inline i16x izero_16() { return {_mm512_setzero_si512()}; }
static inline i16x isplat_16(std::int32_t a) { return {_mm512_set1_epi32(a)}; }
static inline void in_order(i16x& a) { asm volatile("" : "+v"(a.v)); }
static inline i16x dot(s32x a, s32x b, i16x c) { return {_mm512_dpwssd_epi32(c.v, a.v, b.v)}; }
static inline void add_dot(s32x a, s32x b, i16x& c) {
    c = dot(a, b, c);
    in_order(c);
}
// sum += in each lane the products of four unsigned bytes of a with the four signed ones at p.
static inline void add_dot_bytes(__m512i a, const std::int8_t* p, __m512i& sum) {
    using Four = std::int32_t;
#if defined(__GNUC__)  // compilers load the four bytes apart, and copy the sum
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(a), "m"(*reinterpret_cast<const Four*>(p)));
#else
    Four four;
    std::memcpy(&four, p, 4);
    sum = _mm512_dpbusd_epi32(sum, a, _mm512_set1_epi32(four));
#endif
}
static inline f16x abs(f16x a) { return {_mm512_abs_ps(a.v)}; }
static inline i16x to_int(f16x a) { return {_mm512_cvtps_epi32(a.v)}; }
static inline void store_narrow(std::int16_t* p, i16x a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(a.v));
}
static inline f16x to_float(i16x a) { return {_mm512_cvtepi32_ps(a.v)}; }
static inline f8 first_8(f16x a) { return {_mm512_castps512_ps256(a.v)}; }
static inline f8 last_8(f16x a) {
    return {_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1))};
}
#endif
