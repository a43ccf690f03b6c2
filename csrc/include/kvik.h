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
#define KVIK_ABI 3
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

/* ---- Attention ---------------------------------------------------------------------------- */

/* How the numbers of a stream are stored; groups of channels share a scale (and a minimum). */
enum {
  KVIK_F32 = 0,
  KVIK_F16 = 1,
  KVIK_BF16 = 2,
  KVIK_INT8 = 3,      /* signed codes: scale * code */
  KVIK_UINT8 = 4,     /* scale * code + low */
  KVIK_INT4 = 5,      /* two codes to a byte, the even channel low: scale * (code - 8) */
  KVIK_UINT4 = 6      /* the same with a minimum: scale * code + low */
};

/* One stream (K or V) of a layer: where its planes lie in a page, in bytes. A plane is
   [heads, page_tokens, items]. */
typedef struct {
  int32_t format;
  int32_t dim;        /* channels, a multiple of 16 */
  int32_t group;      /* channels that share a scale; dim for floats */
  int32_t reserved;
  int64_t code, scale, low;
} kvik_stream;

/* What does not change from step to step. */
typedef struct {
  kvik_stream k, v;
  int32_t heads, kv_heads;
  int32_t page_tokens;
  int32_t rope_dim, rope_offset;  /* rope_dim 0: no rotation */
  int32_t rope_interleaved;       /* pairs (2i, 2i+1) instead of (i, i + rope_dim / 2) */
  float scale, softcap;           /* softcap 0: none */
  int64_t window;                 /* 0: everything stays visible */
  int64_t sinks;                  /* first tokens that stay visible beside a window */
  int64_t scratch_origin;         /* offset in a page where a scratch page begins */
} kvik_layer;

/* The sequences of a step in one group of layers. Sequence b has the rows row[b] .. row[b+1] of
   the flat batch, the first at position start[b], and the pages table[b] .. table[b+1]: ascending
   page numbers (position / page_tokens) with references. A reference r >= 0 is the 64-byte row
   of the pool where the page begins, r < 0 the scratch page -1 - r. */
typedef struct {
  int64_t sequences;
  const int64_t *row, *start, *table;
  const int32_t *numbers, *refs;
  uint8_t *pool;
} kvik_batch;

/* One layer of one step. q [N, heads, k.dim], k [N, kv_heads, k.dim], v [N, kv_heads, v.dim] come
   before rotation, with strides between rows; k and v NULL when they are written already. cos and
   sin [N, rope_dim / 2] rotate q and k; second_cos and second_sin, when not NULL, rotate the query
   that scores the first `sinks` tokens. out [N, heads, v.dim] and lse [N, heads] are contiguous. */
typedef struct {
  const float *q, *k, *v;
  int64_t q_stride, k_stride, v_stride;
  const float *cos, *sin, *second_cos, *second_sin;
  uint8_t *scratch;
  int64_t scratch_stride;
  float *out, *lse;
} kvik_step;

KVIK_API void kvik_attend(const kvik_batch *batch, const kvik_layer *layer, const kvik_step *step);

/* Attention of q [H, G, n, D] over E explicit entries k [H, E, D], v [H, E, Dv], all contiguous.
   Entry e is seen by queries at positions first[e] <= p < until[e]; the first `sinks` entries are
   scored by `second` instead of q when it is not NULL. out [H, G, n, Dv], lse [H, G, n]. With
   mass [H, E], out is not written and lse is read: mass is what each entry receives. */
typedef struct {
  const float *q, *second, *k, *v;
  const int64_t *position, *first, *until;
  int64_t heads, group, queries, entries, dim, v_dim, sinks;
  float scale, softcap;
  float *out, *lse;
  double *mass;
} kvik_dense;

KVIK_API void kvik_attend_dense(const kvik_dense *args);

#ifdef __cplusplus
}
#endif
#endif
