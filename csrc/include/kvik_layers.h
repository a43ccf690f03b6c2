/* Layers of a decoder one after another in a single call; part of kvik.h's ABI. */
#ifndef KVIK_LAYERS_H
#define KVIK_LAYERS_H
#include "kvik.h"
#include "kvik_linear.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A layer's own maps: before its cache (queries, then keys and values unless it reads another
   layer's cache) and after it. */
typedef struct {
  const kvik_project_args *before;
  const kvik_finish_args *after;
} kvik_layer_maps;

/* A layer in one cache: what it stores there, and which place of a step is its own. */
typedef struct {
  const kvik_layer *layer;
  int64_t place;
} kvik_layer_store;

/* Where a step finds the tokens of the layers that keep the same ones and rotate them alike. The
   angles and scratch pages are those of kvik_step. */
typedef struct {
  const kvik_batch *batch;
  const float *cos, *sin, *second_cos, *second_sin;
  uint8_t *scratch;
  int64_t scratch_stride;
} kvik_place;

/* x [n, hidden] becomes the output of the last of `count` layers: their maps belong to the model,
   their stores to its cache, the places to the step. The same to the bit as kvik_project,
   kvik_attend and kvik_finish for each of them. */
KVIK_API void kvik_layers(const kvik_layer_maps *maps, const kvik_layer_store *stores,
                          int64_t count, const kvik_place *places, int64_t n, float *x);

#ifdef __cplusplus
}
#endif
#endif
