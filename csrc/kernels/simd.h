// Eight floats, eight 32-bit and sixteen 16-bit integers at a time, the same on every machine.
//
// Kernels are written once against these types and compiled once per instruction set; the file is
// included inside the variant's namespace. A fused multiply-add rounds once everywhere, so that
// variants agree to the bit wherever the order of operations is the same.
#if defined(KVIK_AVX2) || defined(KVIK_AVX512)
#include "kernels/simd_x86.h"
#elif defined(KVIK_NEON)
#include "kernels/simd_neon.h"
#else
#include "kernels/simd_scalar.h"
#endif
