#include "runtime/cpu.h"

#include <atomic>
#include <cstring>

namespace kvik {

// Defined by each variant's build of the kernels.
#if defined(KVIK_HAS_AVX2)
namespace avx2 { extern const Kernels table; }
#endif
#if defined(KVIK_HAS_AVX512)
namespace avx512 { extern const Kernels table; }
#endif
#if defined(KVIK_HAS_NEON)
namespace neon { extern const Kernels table; }
#endif
namespace scalar { extern const Kernels table; }

namespace {

struct Usable {
    const Kernels* found[8] = {};
    Usable() {
        int n = 0;
#if defined(KVIK_HAS_AVX512)
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
            __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
            found[n++] = &avx512::table;
#endif
#if defined(KVIK_HAS_AVX2)
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
            __builtin_cpu_supports("f16c"))
            found[n++] = &avx2::table;
#endif
#if defined(KVIK_HAS_NEON)
        found[n++] = &neon::table;  // every 64-bit Arm processor has it
#endif
        found[n++] = &scalar::table;
    }
};

const Usable& all() {
    static const Usable one;
    return one;
}
std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels* const* usable() { return all().found; }

const Kernels& kernels() {
    const Kernels* now = chosen.load(std::memory_order_acquire);
    return now ? *now : *all().found[0];
}

bool select(const char* name) {
    for (const Kernels* const* k = usable(); *k; ++k)
        if (!std::strcmp((*k)->name, name)) {
            chosen.store(*k, std::memory_order_release);
            return true;
        }
    return false;
}

}  // namespace kvik
