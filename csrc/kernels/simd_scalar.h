// Plain C++, for machines without a variant of their own and as a check on the others.
struct f8 { float v[8]; };
struct i8x { std::int32_t v[8]; };
struct s16 { std::int16_t v[16]; };

#define KVIK_EACH(n) for (int i = 0; i < (n); ++i)
static inline f8 load(const float* p) { f8 r; KVIK_EACH(8) r.v[i] = p[i]; return r; }
static inline void store(float* p, f8 a) { KVIK_EACH(8) p[i] = a.v[i]; }
static inline f8 splat(float a) { f8 r; KVIK_EACH(8) r.v[i] = a; return r; }
static inline f8 zero() { return splat(0.0f); }
static inline f8 operator+(f8 a, f8 b) { KVIK_EACH(8) a.v[i] += b.v[i]; return a; }
static inline f8 operator-(f8 a, f8 b) { KVIK_EACH(8) a.v[i] -= b.v[i]; return a; }
static inline f8 operator*(f8 a, f8 b) { KVIK_EACH(8) a.v[i] *= b.v[i]; return a; }
static inline f8 operator/(f8 a, f8 b) { KVIK_EACH(8) a.v[i] /= b.v[i]; return a; }
static inline f8 fma(f8 a, f8 b, f8 c) { KVIK_EACH(8) a.v[i] = std::fma(a.v[i], b.v[i], c.v[i]); return a; }
// Like x86: the second operand when either is NaN.
static inline f8 max(f8 a, f8 b) { KVIK_EACH(8) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
static inline f8 min(f8 a, f8 b) { KVIK_EACH(8) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
static inline f8 abs(f8 a) { KVIK_EACH(8) a.v[i] = std::fabs(a.v[i]); return a; }
static inline f8 round(f8 a) { KVIK_EACH(8) a.v[i] = std::nearbyint(a.v[i]); return a; }
static inline f8 between(int low, int high, f8 a, f8 b) {
    KVIK_EACH(8) if (i < low || i >= high) a.v[i] = b.v[i];
    return a;
}
static inline float sum(f8 a) {
    return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}
static inline float top(f8 a) {
    float m = a.v[0];
    KVIK_EACH(8) m = a.v[i] > m ? a.v[i] : m;
    return m;
}
static inline f8 zero_below(f8 x, f8 low, f8 a) {
    KVIK_EACH(8) if (x.v[i] < low.v[i]) a.v[i] = 0.0f;
    return a;
}
static inline f8 power(f8 n) {
    KVIK_EACH(8) {
        const std::uint32_t bits = static_cast<std::uint32_t>(static_cast<int>(n.v[i]) + 127) << 23;
        std::memcpy(&n.v[i], &bits, 4);
    }
    return n;
}

static inline i8x izero() { i8x r; KVIK_EACH(8) r.v[i] = 0; return r; }
static inline i8x operator+(i8x a, i8x b) { KVIK_EACH(8) a.v[i] += b.v[i]; return a; }
static inline f8 to_float(i8x a) { f8 r; KVIK_EACH(8) r.v[i] = static_cast<float>(a.v[i]); return r; }
static inline i8x to_int(f8 a) {
    i8x r;
    KVIK_EACH(8) r.v[i] = static_cast<std::int32_t>(std::nearbyint(a.v[i]));
    return r;
}
static inline i8x load(const std::int32_t* p) { i8x r; KVIK_EACH(8) r.v[i] = p[i]; return r; }
static inline void store(std::int32_t* p, i8x a) { KVIK_EACH(8) p[i] = a.v[i]; }
static inline void in_order(i8x&) {}
static inline i8x pair_sums(i8x a, i8x b) {
    i8x r;
    KVIK_EACH(8) {
        const i8x& x = i % 4 < 2 ? a : b;
        r.v[i] = x.v[i / 4 * 4 + i % 2 * 2] + x.v[i / 4 * 4 + i % 2 * 2 + 1];
    }
    return r;
}
static inline i8x lower(i8x a, i8x b) { KVIK_EACH(4) a.v[4 + i] = b.v[i]; return a; }
static inline i8x upper(i8x a, i8x b) { KVIK_EACH(4) b.v[i] = a.v[4 + i]; return b; }
static inline void unzip(f8 a, f8 b, f8& even, f8& odd) {
    KVIK_EACH(8) {
        const f8& x = i < 4 ? a : b;
        even.v[i] = x.v[i % 4 * 2];
        odd.v[i] = x.v[i % 4 * 2 + 1];
    }
}

static inline s16 load(const std::int16_t* p) { s16 r; KVIK_EACH(16) r.v[i] = p[i]; return r; }
static inline void store(std::int16_t* p, s16 a) { KVIK_EACH(16) p[i] = a.v[i]; }
static inline s16 splat_pair(const std::int16_t* p) { s16 r; KVIK_EACH(16) r.v[i] = p[i % 2]; return r; }
static inline s16 widen(const std::int8_t* p) { s16 r; KVIK_EACH(16) r.v[i] = p[i]; return r; }
static inline i8x dot(s16 a, s16 b, i8x c) {
    KVIK_EACH(8) c.v[i] += a.v[2 * i] * b.v[2 * i] + a.v[2 * i + 1] * b.v[2 * i + 1];
    return c;
}
static inline void add_dot(s16 x, s16 y, i8x& z) { z = dot(x, y, z); }
static inline s16 load_bytes(const std::uint8_t* p) { s16 r; std::memcpy(&r, p, 32); return r; }
template <int SHIFT>
static inline s16 nibbles16(s16 a) {
    KVIK_EACH(16) a.v[i] = static_cast<std::int16_t>((static_cast<std::uint16_t>(a.v[i]) >> SHIFT) & 15);
    return a;
}
static inline float from_half(std::uint16_t h) {
    const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000) << 16;
    const std::uint32_t magnitude = static_cast<std::uint32_t>(h & 0x7fff) << 13;
    float value;
    std::uint32_t bits = magnitude;
    if (magnitude >= 0x0f800000) {  // infinity or NaN
        bits = magnitude + 0x70000000;
        if (bits & 0x7fffff) bits |= 0x400000;
        bits |= 0x7f800000;
        bits |= sign;
        std::memcpy(&value, &bits, 4);
        return value;
    }
    std::memcpy(&value, &bits, 4);
    value *= 5.192296858534828e33f;  // 2^112: moves the exponent, exact for subnormals too
    std::memcpy(&bits, &value, 4);
    bits |= sign;
    std::memcpy(&value, &bits, 4);
    return value;
}
static inline std::uint16_t to_half(float a) {
    std::uint32_t bits;
    std::memcpy(&bits, &a, 4);
    const std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00 | static_cast<std::uint16_t>((bits >> 13) & 0x1ff);
    if (bits >= 0x477ff000) return sign | 0x7c00;
    if (bits < 0x38800000) {  // subnormal: add with the lowest bit where it must round
        float value, magic = 0.5f;
        std::memcpy(&value, &bits, 4);
        value += magic;
        std::memcpy(&bits, &value, 4);
        return static_cast<std::uint16_t>(sign | (bits - 0x3f000000));
    }
    bits += 0xc8000fff + ((bits >> 13) & 1);
    return static_cast<std::uint16_t>(sign | (bits >> 13));
}
static inline f8 load_half(const std::uint16_t* p) { f8 r; KVIK_EACH(8) r.v[i] = from_half(p[i]); return r; }
static inline void store_half(std::uint16_t* p, f8 a) { KVIK_EACH(8) p[i] = to_half(a.v[i]); }
static inline f8 load_bfloat(const std::uint16_t* p) {
    f8 r;
    KVIK_EACH(8) {
        const std::uint32_t bits = static_cast<std::uint32_t>(p[i]) << 16;
        std::memcpy(&r.v[i], &bits, 4);
    }
    return r;
}
static inline void prefetch(const void*) {}
template <bool SIGNED>
static inline void transpose_pairs(const std::uint8_t* const src[8], int at, std::int16_t* to,
                                   int stride) {
    for (int j = 0; j < 8; ++j)
        for (int i = 0; i < 16; ++i) {
            const std::uint8_t code = src[i / 2][at + 2 * j + i % 2];
            to[j * stride + i] = static_cast<std::int8_t>(SIGNED ? code : code ^ 128);
        }
}
static inline void transpose(f8 x[8]) {
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < i; ++j) std::swap(x[i].v[j], x[j].v[i]);
}
template <int LESS>
static inline void split_nibbles(const std::uint8_t* from, std::uint8_t* to) {
    KVIK_EACH(16) {
        to[2 * i] = static_cast<std::uint8_t>((from[i] & 15) - LESS);
        to[2 * i + 1] = static_cast<std::uint8_t>((from[i] >> 4) - LESS);
    }
}
template <bool SIGNED>
static inline void pair_up(const std::uint8_t* a, const std::uint8_t* b, s16& first, s16& last) {
    KVIK_EACH(16) {
        const std::uint8_t* from = i % 2 ? b : a;
        for (int half = 0; half < 2; ++half) {
            const std::uint8_t code = from[8 * half + i / 2];
            (half ? last : first).v[i] = static_cast<std::int8_t>(SIGNED ? code : code ^ 128);
        }
    }
}
static inline void store_narrow(std::int16_t* p, i8x a) {
    KVIK_EACH(8) p[i] = static_cast<std::int16_t>(a.v[i]);
}
#undef KVIK_EACH
