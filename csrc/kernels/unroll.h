// Loops that the compiler writes out; included inside a variant's namespace.

template <class F, int... T>
static inline void unrolled(std::integer_sequence<int, T...>, F&& body) {
    (body(std::integral_constant<int, T>{}), ...);
}
// body(0), body(1), .. body(N - 1), each with its number as a constant.
template <int N, class F>
static inline void unroll(F&& body) {
    unrolled(std::make_integer_sequence<int, N>{}, body);
}

// Before a loop over registers: written out early enough that its arrays become registers.
// KVIK_UNROLL_4 takes four turns of a longer loop at once.
// Neither in plain C++, which has no registers to keep, nor under sanitizers, where it only takes
// time to compile.
#if !(defined(KVIK_AVX2) || defined(KVIK_AVX512) || defined(KVIK_NEON)) || \
    defined(__SANITIZE_ADDRESS__)
#define KVIK_UNROLL
#define KVIK_UNROLL_4
#elif defined(__clang__)
#define KVIK_UNROLL _Pragma("unroll")
#define KVIK_UNROLL_4 _Pragma("unroll 4")
#elif defined(__GNUC__)
#define KVIK_UNROLL _Pragma("GCC unroll 16")
#define KVIK_UNROLL_4 _Pragma("GCC unroll 4")
#else
#define KVIK_UNROLL
#define KVIK_UNROLL_4
#endif

// A part of a kernel that is never a call of its own, for lambdas.
#if defined(__GNUC__) || defined(__clang__)
#define KVIK_PART __attribute__((always_inline))
#else
#define KVIK_PART
#endif

// Prefetches all lines of 64 bytes of so many from `p` on. GCC takes a loop of nothing but prefetches
// for an empty one.
static inline void prefetch_all(const std::uint8_t* p, std::intptr_t bytes) {
    for (std::intptr_t i = 0; i < bytes; i += 64) {
        prefetch(p + i);
#if defined(__GNUC__)
        asm volatile("");
#endif
    }
}

// A kernel that keeps its registers to itself instead of being drawn into its caller.
#if defined(_MSC_VER)
#define KVIK_ALONE __declspec(noinline)
#else
#define KVIK_ALONE __attribute__((noinline))
#endif
