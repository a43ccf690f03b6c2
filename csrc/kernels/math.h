// exp and what follows from it; included inside a variant's namespace after simd.h.

// e^x, relative error below 3e-7; exactly 0 for x <= -87.4 (also -inf), exactly 1 for 0.
// Cody and Waite's reduction with a degree-6 polynomial (minimax on [-ln2/2, ln2/2]).
static inline f8 exp(f8 x) {
    const f8 low = splat(-87.33654f);
    const f8 y = max(low, min(splat(88.02f), x));  // in this order a NaN stays one
    const f8 n = round(y * splat(1.44269504f));
    f8 r = fma(n, splat(-0.693359375f), y);
    r = fma(n, splat(2.12194440e-4f), r);
    f8 p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r + splat(1.0f));
    return zero_below(x, low, p * power(n));
}
static inline float exp(float x) {
    float lanes[8];
    store(lanes, exp(splat(x)));
    return lanes[0];
}
// tanh(x) by e^2x; absolute error below 1e-6.
static inline f8 tanh(f8 x) {
    const f8 e = exp(max(splat(-20.0f), min(splat(20.0f), x)) * splat(2.0f));  // keeps NaN
    return splat(1.0f) - splat(2.0f) / (e + splat(1.0f));
}
