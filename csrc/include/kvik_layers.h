/* Layers of a decoder one after another in a single call; part of kvik.h's ABI. */
#ifndef KVIK_LAYERS_H
#define KVIK_LAYERS_H
#include "kvik.h"
#include "kvik_linear.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A layer of one step: the maps before its cache (queries, then keys and values unless it reads
   another layer's cache), where its tokens are, and what follows. The angles and scratch pages are
   those of kvik_step. */
typedef struct {
  const kvik_project_args *before;
  const kvik_finish_args *after;
  const kvik_batch *batch;
  const kvik_layer *layer;
  const float *cos, *sin, *second_cos, *second_sin;
  uint8_t *scratch;
  int64_t scratch_stride;
} kvik_decoder_layer;

/* x [n, hidden] becomes the output of the last layer. The same to the bit as kvik_project,
   kvik_attend and kvik_finish for each of them. */
KVIK_API void kvik_layers(const kvik_decoder_layer *layers, int64_t count, int64_t n, float *x);

#ifdef __cplusplus
}
#endif
#endif
