#include "runtime/cpu.h"

#include <atomic>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
#endif

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

#if defined(__x86_64__) || defined(_M_X64)
// What the processor has and the system saves between threads. Read by hand: the compiler's own
// helper needs a library that clang-cl does not link.
struct X86 {
    bool avx2 = false, avx512 = false;
    X86() {
        unsigned a, b, c, d;
        if (!__get_cpuid(1, &a, &b, &c, &d)) return;
        constexpr unsigned FMA = 1u << 12, OSXSAVE = 1u << 27, AVX = 1u << 28, F16C = 1u << 29;
        constexpr unsigned FIRST = FMA | OSXSAVE | AVX | F16C;
        if ((c & FIRST) != FIRST) return;
        unsigned saved, high;
        __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
        if ((saved & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
        avx2 = b >> 5 & 1;
        constexpr unsigned F = 1u << 16, BW = 1u << 30, VL = 1u << 31, VNNI = 1u << 11;
        avx512 = avx2 && (saved & 0xe6) == 0xe6 && (b & (F | BW | VL)) == (F | BW | VL) && c & VNNI;
    }
};
#endif

struct Usable {
    const Kernels* found[8] = {};
    Usable() {
        int n = 0;
#if defined(__x86_64__) || defined(_M_X64)
        const X86 has;
#endif
#if defined(KVIK_HAS_AVX512)
        if (has.avx512) found[n++] = &avx512::table;
#endif
#if defined(KVIK_HAS_AVX2)
        if (has.avx2) found[n++] = &avx2::table;
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
