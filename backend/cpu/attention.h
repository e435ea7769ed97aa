// Attention over the caches, and the indexer that chooses positions. Called by the layer; works on the layer's call.
#ifndef COLIBRI_CPU_ATTENTION_H
#define COLIBRI_CPU_ATTENTION_H
#include <stdbool.h>
#include "layer.h"

// Rotates dim elements; pairs are (2j, 2j+1) when interleaved, else (j, j+dim/2). The result's pairs are (j, j+dim/2). in and out
// may be the same when dim is at most cpu_rope_most.
enum { cpu_rope_most = 1024 };
void cpu_rope(const float *in, float *out, int dim, int interleaved, const float *cos, const float *sin);

// context[row] = attention of every row's queries over its cache, [rows, heads·value width].
// MLA: query is [rows, heads·(nope+rope)], rotated. GQA: query is [rows, heads·head_dim], rotated.
int cpu_attention(cpu_backend *b, const cpu_layer_call *c, const float *query, float *context);

// Fills the call's selection from index queries [rows, heads·dim] (not rotated yet) and weights [rows, heads].
int cpu_index(cpu_backend *b, const cpu_layer_call *c, const float *query, const float *weight);

// The count best of n scores, positions ascending; NaN is below every number. Equal scores go to the lower position, or as tie_span
// says (see compute.Row). Returns whether some of several equal scores were chosen and others not.
bool cpu_select(const float *scores, int n, int count, int tie_span, uint32_t *order, int32_t *positions);

// Largest scratch of a thread, in floats.
size_t cpu_attention_scratch(const cpu_backend *b, const cpu_layer_call *c);
#endif
