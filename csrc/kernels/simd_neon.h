// 64-bit Arm: pairs of 128-bit registers, lanes 0-3 and 4-7 (16-bit: 0-7 and 8-15).
struct f8 { float32x4_t a, b; };
struct i8x { int32x4_t a, b; };   // 8 x int32
struct s16 { int16x8_t a, b; };   // 16 x int16

static inline f8 load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
static inline void store(float* p, f8 x) {
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
}
static inline f8 splat(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
static inline f8 zero() { return splat(0.0f); }
static inline f8 operator+(f8 x, f8 y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
static inline f8 operator-(f8 x, f8 y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
static inline f8 operator*(f8 x, f8 y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
static inline f8 operator/(f8 x, f8 y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)}; }
static inline f8 fma(f8 x, f8 y, f8 z) {  // x*y + z
    return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)};
}
// Arm's own maximum prefers neither operand of a NaN; ours gives the second, as on x86.
static inline f8 max(f8 x, f8 y) {
    return {vbslq_f32(vcgtq_f32(x.a, y.a), x.a, y.a), vbslq_f32(vcgtq_f32(x.b, y.b), x.b, y.b)};
}
static inline f8 min(f8 x, f8 y) {
    return {vbslq_f32(vcltq_f32(x.a, y.a), x.a, y.a), vbslq_f32(vcltq_f32(x.b, y.b), x.b, y.b)};
}
static inline f8 abs(f8 x) { return {vabsq_f32(x.a), vabsq_f32(x.b)}; }
static inline f8 round(f8 x) { return {vrndnq_f32(x.a), vrndnq_f32(x.b)}; }  // ties to even
// The lanes from `low` up to `high` of `x`, the others of `y`.
static inline f8 between(int low, int high, f8 x, f8 y) {
    static const std::int32_t lanes[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    const int32x4_t from = vdupq_n_s32(low), to = vdupq_n_s32(high);
    const int32x4_t p = vld1q_s32(lanes), q = vld1q_s32(lanes + 4);
    const uint32x4_t in_a = vandq_u32(vcgeq_s32(p, from), vcltq_s32(p, to));
    const uint32x4_t in_b = vandq_u32(vcgeq_s32(q, from), vcltq_s32(q, to));
    return {vbslq_f32(in_a, x.a, y.a), vbslq_f32(in_b, x.b, y.b)};
}
// ((x0+x4)+(x2+x6)) + ((x1+x5)+(x3+x7))
static inline float sum(f8 x) {
    const float32x4_t four = vaddq_f32(x.a, x.b);
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
static inline float top(f8 x) { return vmaxvq_f32(vmaxq_f32(x.a, x.b)); }
// 0 where x < low, y elsewhere (also where x is NaN).
static inline f8 zero_below(f8 x, f8 low, f8 y) {
    const auto clear = [](float32x4_t v, uint32x4_t mask) {
        return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v), mask));
    };
    return {clear(y.a, vcltq_f32(x.a, low.a)), clear(y.b, vcltq_f32(x.b, low.b))};
}
// 2^n for whole n in [-126, 127].
static inline f8 power(f8 n) {
    const int32x4_t bias = vdupq_n_s32(127);
    return {vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.a), bias), 23)),
            vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.b), bias), 23))};
}

static inline i8x izero() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
static inline i8x operator+(i8x x, i8x y) { return {vaddq_s32(x.a, y.a), vaddq_s32(x.b, y.b)}; }
static inline f8 to_float(i8x x) { return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b)}; }
static inline i8x to_int(f8 x) { return {vcvtnq_s32_f32(x.a), vcvtnq_s32_f32(x.b)}; }
static inline i8x load(const std::int32_t* p) { return {vld1q_s32(p), vld1q_s32(p + 4)}; }
static inline void store(std::int32_t* p, i8x x) {
    vst1q_s32(p, x.a);
    vst1q_s32(p + 4, x.b);
}
static inline void in_order(i8x&) {}
// Sums of neighbouring lanes, in each half those of x, then those of y.
static inline i8x pair_sums(i8x x, i8x y) { return {vpaddq_s32(x.a, y.a), vpaddq_s32(x.b, y.b)}; }
// The lower halves of x and y; the upper ones.
static inline i8x lower(i8x x, i8x y) { return {x.a, y.a}; }
static inline i8x upper(i8x x, i8x y) { return {x.b, y.b}; }
// Four rows of four as their columns.
static inline void transpose4(float32x4_t x[4]) {
    const float32x4_t p = vtrn1q_f32(x[0], x[1]), q = vtrn2q_f32(x[0], x[1]);
    const float32x4_t r = vtrn1q_f32(x[2], x[3]), s = vtrn2q_f32(x[2], x[3]);
    x[0] = vcombine_f32(vget_low_f32(p), vget_low_f32(r));
    x[1] = vcombine_f32(vget_low_f32(q), vget_low_f32(s));
    x[2] = vcombine_f32(vget_high_f32(p), vget_high_f32(r));
    x[3] = vcombine_f32(vget_high_f32(q), vget_high_f32(s));
}

static inline s16 load(const std::int16_t* p) { return {vld1q_s16(p), vld1q_s16(p + 8)}; }
static inline void store(std::int16_t* p, s16 x) {
    vst1q_s16(p, x.a);
    vst1q_s16(p + 8, x.b);
}
// The pair of 16-bit numbers at p in all eight lanes.
static inline s16 splat_pair(const std::int16_t* p) {
    std::int32_t pair;
    std::memcpy(&pair, p, 4);
    const int16x8_t all = vreinterpretq_s16_s32(vdupq_n_s32(pair));
    return {all, all};
}
static inline s16 widen(const std::int8_t* p) {  // 16 of them
    const int8x16_t x = vld1q_s8(p);
    return {vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x)};
}
// z + the sums of products of neighbouring pairs.
static inline i8x dot(s16 x, s16 y, i8x z) {
    const auto pairs = [](int16x8_t p, int16x8_t q) {
        return vpaddq_s32(vmull_s16(vget_low_s16(p), vget_low_s16(q)), vmull_high_s16(p, q));
    };
    return {vaddq_s32(z.a, pairs(x.a, y.a)), vaddq_s32(z.b, pairs(x.b, y.b))};
}
// z += the same.
static inline void add_dot(s16 x, s16 y, i8x& z) { z = dot(x, y, z); }
// Thirty-two bytes.
static inline s16 load_bytes(const std::uint8_t* p) {
    return {vreinterpretq_s16_u8(vld1q_u8(p)), vreinterpretq_s16_u8(vld1q_u8(p + 16))};
}
// The low nibble of both 16-bit numbers of each lane after shifting each number right by SHIFT.
template <int SHIFT>
static inline s16 nibbles16(s16 x) {
    const auto shifted = [](int16x8_t v) {
        const uint16x8_t u = vshlq_u16(vreinterpretq_u16_s16(v), vdupq_n_s16(-SHIFT));
        return vreinterpretq_s16_u16(vandq_u16(u, vdupq_n_u16(15)));
    };
    return {shifted(x.a), shifted(x.b)};
}
static inline f8 load_half(const std::uint16_t* p) {
    const float16x8_t x = vreinterpretq_f16_u16(vld1q_u16(p));
    return {vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x)};
}
static inline void store_half(std::uint16_t* p, f8 x) {  // to nearest, ties to even
    vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)));
}
static inline float from_half(std::uint16_t h) {
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
}
static inline std::uint16_t to_half(float x) {
    return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x))), 0);
}
static inline f8 load_bfloat(const std::uint16_t* p) {
    const uint16x8_t x = vld1q_u16(p);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(x), 16)),
            vreinterpretq_f32_u32(vshll_high_n_u16(x, 16))};
}
static inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

// Eight tokens' codes [8][16], from src[i] + at, as pairs of neighbours: row j of the result, at
// to + j * stride, holds pair j of all eight tokens, widened to 16 bits, unsigned ones less 128.
template <bool SIGNED>
static inline void transpose_pairs(const std::uint8_t* const src[8], int at, std::int16_t* to,
                                   int stride) {
    uint16x8_t x[8], y[8];
    for (int i = 0; i < 8; ++i) x[i] = vreinterpretq_u16_u8(vld1q_u8(src[i] + at));
    for (int i = 0; i < 4; ++i) {
        y[2 * i] = vzip1q_u16(x[2 * i], x[2 * i + 1]);
        y[2 * i + 1] = vzip2q_u16(x[2 * i], x[2 * i + 1]);
    }
    const auto zip = [](uint16x8_t p, uint16x8_t q, uint16x8_t& low, uint16x8_t& high) {
        const uint32x4_t u = vreinterpretq_u32_u16(p), v = vreinterpretq_u32_u16(q);
        low = vreinterpretq_u16_u32(vzip1q_u32(u, v));
        high = vreinterpretq_u16_u32(vzip2q_u32(u, v));
    };
    for (int i = 0; i < 2; ++i) {
        zip(y[4 * i], y[4 * i + 2], x[4 * i], x[4 * i + 1]);
        zip(y[4 * i + 1], y[4 * i + 3], x[4 * i + 2], x[4 * i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        const uint64x2_t u = vreinterpretq_u64_u16(x[i]), v = vreinterpretq_u64_u16(x[i + 4]);
        y[2 * i] = vreinterpretq_u16_u64(vzip1q_u64(u, v));
        y[2 * i + 1] = vreinterpretq_u16_u64(vzip2q_u64(u, v));
    }
    for (int j = 0; j < 8; ++j) {
        const uint8x16_t turned = vdupq_n_u8(SIGNED ? 0 : 128);
        const int8x16_t codes = vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_u16(y[j]), turned));
        std::int16_t* row = to + j * stride;
        vst1q_s16(row, vmovl_s8(vget_low_s8(codes)));
        vst1q_s16(row + 8, vmovl_high_s8(codes));
    }
}
// The even lanes of x, then of y; the odd ones.
static inline void unzip(f8 x, f8 y, f8& even, f8& odd) {
    even = {vuzp1q_f32(x.a, x.b), vuzp1q_f32(y.a, y.b)};
    odd = {vuzp2q_f32(x.a, x.b), vuzp2q_f32(y.a, y.b)};
}
// Row i of the result is column i of x.
static inline void transpose(f8 x[8]) {
    float32x4_t q[4][4];  // quarters: upper left, upper right, lower left, lower right
    for (int i = 0; i < 4; ++i) {
        q[0][i] = x[i].a;
        q[1][i] = x[i].b;
        q[2][i] = x[i + 4].a;
        q[3][i] = x[i + 4].b;
    }
    for (auto& quarter : q) transpose4(quarter);
    for (int i = 0; i < 4; ++i) {
        x[i] = {q[0][i], q[2][i]};
        x[i + 4] = {q[1][i], q[3][i]};
    }
}
// Sixteen bytes of two 4-bit codes each, as 32 bytes of a code less LESS, the low half of each first.
template <int LESS>
static inline void split_nibbles(const std::uint8_t* from, std::uint8_t* to) {
    const uint8x16_t x = vld1q_u8(from), less = vdupq_n_u8(LESS);
    const uint8x16_t low = vsubq_u8(vandq_u8(x, vdupq_n_u8(15)), less);
    const uint8x16_t high = vsubq_u8(vshrq_n_u8(x, 4), less);
    vst1q_u8(to, vzip1q_u8(low, high));
    vst1q_u8(to + 16, vzip2q_u8(low, high));
}
// Sixteen bytes at a and at b, widened, unsigned ones less 128: a pair of each two, those of the
// first eight and the last.
template <bool SIGNED>
static inline void pair_up(const std::uint8_t* a, const std::uint8_t* b, s16& first, s16& last) {
    const uint8x16_t turned = vdupq_n_u8(SIGNED ? 0 : 128);
    const int8x16_t x = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(a), turned));
    const int8x16_t y = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(b), turned));
    const int8x16_t low = vzip1q_s8(x, y), high = vzip2q_s8(x, y);
    first = {vmovl_s8(vget_low_s8(low)), vmovl_high_s8(low)};
    last = {vmovl_s8(vget_low_s8(high)), vmovl_high_s8(high)};
}
// Eight 32-bit numbers that fit, as 16-bit ones.
static inline void store_narrow(std::int16_t* p, i8x x) {
    vst1q_s16(p, vcombine_s16(vqmovn_s32(x.a), vqmovn_s32(x.b)));
}
