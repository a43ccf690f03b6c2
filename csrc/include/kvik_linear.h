/* Linear maps with packed weights, and what lies between them; part of kvik.h's ABI.
 *
 * A weight keeps the codes and scales of its GGUF type (kvik_type), laid out in panels of eight
 * rows; activations are float32 and, for coded weights, rounded to 16-bit integers for each row
 * and group of 32 inputs. A row's result is the same to the bit however many rows come with it,
 * whatever the threads and the instruction set.
 */
#ifndef KVIK_LINEAR_H
#define KVIK_LINEAR_H
#include "kvik.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A matrix [rows, cols]: out = x . W^T + bias. */
typedef struct {
  const void *data; /* as kvik_pack wrote it */
  const float *bias; /* [rows], or NULL */
  int64_t rows, cols;
  int32_t type; /* a GGUF tensor type */
  float unit; /* as kvik_pack returned it */
} kvik_matrix;

/* x / rms(x) * weight; weight NULL: no norm at all. */
typedef struct {
  const float *weight;
  float eps;
} kvik_norm;

/* Bytes of a packed matrix; -1 for a type that cannot be packed or rows of no whole blocks. */
KVIK_API int64_t kvik_packed_bytes(int32_t type, int64_t rows, int64_t cols);

/* Packs `rows` rows of a GGUF tensor from `from`. Scales that the file computes from two numbers
   are kept as halves of `unit`, a power of two; for other types unit is 1. 0, or -1 when the
   tensor holds NaN or infinity. */
KVIK_API int32_t kvik_pack(int32_t type, int64_t rows, int64_t cols, const void *from, void *to,
                           float *unit);

/* out [count, cols] = scale * row ids[i] of the matrix. */
KVIK_API void kvik_rows(const kvik_matrix *matrix, const int64_t *ids, int64_t count, float scale,
                        float *out);

/* Up to three maps of one input, side by side: out [n, sum of rows] from x [n, cols]. Where heads[i]
   has a weight, every head_dim outputs of matrix i are normed. */
typedef struct {
  kvik_norm norm;
  kvik_matrix matrices[3];
  kvik_norm heads[3];
  int64_t head_dim;
  int32_t count;
} kvik_project_args;
KVIK_API void kvik_project(const kvik_project_args *args, const float *x, int64_t n, float *out);

enum { KVIK_SILU = 0, KVIK_GELU_TANH = 1 };

/* What follows a layer's attention, for mixed [n, o.cols] and x [n, o.rows]:
     y = x + post_mixer(o(mixed));  out = y + post_ffn(down(act(gate(ffn(y))) * up(ffn(y)))) */
typedef struct {
  kvik_matrix o, gate, up, down;
  kvik_norm post_mixer, ffn, post_ffn;
  int32_t activation;
} kvik_finish_args;
KVIK_API void kvik_finish(const kvik_finish_args *args, const float *mixed, const float *x,
                          int64_t n, float *out);

#ifdef __cplusplus
}
#endif
#endif
