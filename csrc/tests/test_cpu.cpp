// Which variants are offered, and choosing one of them.
#include <cmath>

#include "kvik.h"
#include "tests/check.h"

int main() {
    CHECK(kvik_abi() == KVIK_ABI);
    int usable = 0;
    while (const char* name = kvik_usable_variant(usable)) {
        CHECK(kvik_select_variant(name) == 0);
        CHECK(!std::strcmp(kvik_variant(), name));
        float x[8] = {0.0f, 1.0f, -1.0f, 2.0f, -2.0f, 3.0f, -90.0f, 0.5f}, y[8];
        kvik_exp(x, y, 8);
        CHECK(y[0] == 1.0f && y[6] == 0.0f && std::fabs(y[1] - std::exp(1.0f)) < 1e-6f);
        std::printf("%s\n", name);
        ++usable;
    }
    CHECK(usable >= 1);
    CHECK(!std::strcmp(kvik_usable_variant(usable - 1), "scalar"));  // the last resort
    CHECK(!kvik_usable_variant(usable + 1) && !kvik_usable_variant(-1));

    CHECK(kvik_select_variant("scalar") == 0);
    CHECK(kvik_select_variant("no-such-thing") == -1);
    CHECK(!std::strcmp(kvik_variant(), "scalar"));  // a refused choice changes nothing

#if defined(__x86_64__) && defined(__GNUC__)
    // What we read from the processor is what the compiler's own library reads.
    [[maybe_unused]] const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#if defined(KVIK_HAS_AVX2)  // not all are built under sanitizers
    CHECK((kvik_select_variant("avx2") == 0) == avx2);
#endif
    [[maybe_unused]] const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#if defined(KVIK_HAS_AVX512)
    CHECK((kvik_select_variant("avx512") == 0) == avx512);
#endif
#endif
    return kvik::test::result();
}
