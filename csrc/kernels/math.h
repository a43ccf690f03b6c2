// exp and what follows from it; included inside a variant's namespace after lanes.h.

// e^x, relative error below 3e-7; exactly 0 for x <= -87.4 (also -inf), exactly 1 for 0.
// Cody and Waite's reduction with a degree-6 polynomial (minimax on [-ln2/2, ln2/2]).
template <class F>
static inline F exp(F x) {
    const F low = Lanes<F>::all(-87.33654f);
    const F y = max(low, min(Lanes<F>::all(88.02f), x));  // in this order a NaN stays one
    const F n = round(y * Lanes<F>::all(1.44269504f));
    F r = fma(n, Lanes<F>::all(-0.693359375f), y);
    r = fma(n, Lanes<F>::all(2.12194440e-4f), r);
    F p = Lanes<F>::all(1.9875691500e-4f);
    p = fma(p, r, Lanes<F>::all(1.3981999507e-3f));
    p = fma(p, r, Lanes<F>::all(8.3334519073e-3f));
    p = fma(p, r, Lanes<F>::all(4.1665795894e-2f));
    p = fma(p, r, Lanes<F>::all(1.6666665459e-1f));
    p = fma(p, r, Lanes<F>::all(5.0000001201e-1f));
    p = fma(p, r * r, r + Lanes<F>::all(1.0f));
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
