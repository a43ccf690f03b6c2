// One instruction set's build of all kernels. KVIK_VARIANT is its namespace and name.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>
#if defined(KVIK_AVX2) || defined(KVIK_AVX512)
#include <immintrin.h>
#elif defined(KVIK_NEON)
#include <arm_neon.h>
#endif

#include "kernels/table.h"
#include "runtime/threads.h"

#define KVIK_TEXT_(x) #x
#define KVIK_TEXT(x) KVIK_TEXT_(x)

namespace kvik::KVIK_VARIANT {
#include "kernels/simd.h"
#include "kernels/lanes.h"
#include "kernels/math.h"
#include "kernels/unroll.h"

#include "kernels/attention.inc"
#include "kernels/linear.inc"

extern const Kernels table;
const Kernels table{KVIK_TEXT(KVIK_VARIANT), attention_kernels, linear_kernels};
}  // namespace kvik::KVIK_VARIANT
