/* kvik's native library: a plain C ABI without Python or torch.
 *
 * Callers check shapes, types and bounds; the library trusts its arguments. Tensors are pointers
 * with strides in elements. Every function may be called from any thread.
 */
#ifndef KVIK_H
#define KVIK_H
#include <stdint.h>

#if defined(_WIN32)
#define KVIK_API __declspec(dllexport)
#else
#define KVIK_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever a structure or a signature here does; the loader refuses another number. */
#define KVIK_ABI 1
KVIK_API int32_t kvik_abi(void);

/* Threads that kernels use together, the caller included. */
KVIK_API int32_t kvik_threads(void);
KVIK_API void kvik_set_threads(int32_t count);

/* The instruction set in use; the i-th one this machine can run, best first, or NULL. */
KVIK_API const char *kvik_variant(void);
KVIK_API const char *kvik_usable_variant(int32_t i);
/* 0, or -1 when there is no such variant here. */
KVIK_API int32_t kvik_select_variant(const char *name);

/* y[i] = e^x[i] as the kernels compute it; count a multiple of 8. */
KVIK_API void kvik_exp(const float *x, float *y, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
