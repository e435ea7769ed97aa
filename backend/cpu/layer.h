// The operations of a forward pass: a layer up to its router, routed experts, their sum, embeddings and the head.
// Every function returns 0, or -1 when working memory was refused. Sizes have been checked by the caller.
#ifndef COLIBRI_CPU_LAYER_H
#define COLIBRI_CPU_LAYER_H
#include "matrix.h"

typedef struct {
    int64_t position, cache, tie_span; // as compute.Row
} cpu_row;

typedef struct {
    float *latent, *rope, *index, *keys, *values;
} cpu_cache;

enum { qk_norm_none, qk_norm_head, qk_norm_full };

typedef struct {
    int32_t hidden, mla, heads, kv_heads, head_dim, qk_norm, query_rank, kv_rank, nope_dim, value_dim;
    int32_t rope_dim, interleaved;
    int32_t index_heads, index_dim, index_topk; // index_heads is 0 in layers without an indexer of their own
    int32_t sparse, experts, per_token, sigmoid, groups, top_groups, normalise_gates;
    int32_t shared_later; // shared is left to cpu_shared_experts
    int32_t caches_only;  // as compute.LayerCall.CachesOnly
    float epsilon, latent_epsilon, scale, clip, routed_scale;

    const float *input_norm, *post_norm, *query_a_norm, *kv_a_norm, *query_bias, *key_bias, *value_bias, *query_norm, *key_norm;
    const float *index_key_norm, *index_key_norm_bias, *router_bias;
    cpu_weight query_a, query_b, kv_a, kv_b, query, key, value, output, index_query, index_key, index_score, gate, up, down, router;

    int32_t row_count;
    const cpu_row *rows;
    const cpu_cache *caches;
    const float *cos, *sin;
    int32_t *selection_counts, *selection_positions, *selection_tied; // NULL without DSA
    float *x, *normed, *shared, *gates;
    int32_t *expert_ids;
} cpu_layer_call;

enum { cpu_most_experts = 4096, cpu_most_index_heads = 256 };

int cpu_layer(cpu_backend *b, const cpu_layer_call *c);
// The shared experts of a layer that was run with shared_later: the same bits as without.
int cpu_shared_experts(cpu_backend *b, const cpu_layer_call *c);

typedef struct {
    cpu_weight gate, up, down;
    const int32_t *rows, *slots;
    int32_t count;
} cpu_expert;
int cpu_experts(cpu_backend *b, int hidden, int inner, int rows, const float *input, const cpu_expert *experts, int count, float *output);

void cpu_combine(cpu_backend *b, int rows, int per_token, int hidden, const float *gates, const float *output, const float *shared, float *x);
void cpu_embed(cpu_backend *b, const cpu_weight *table, const int32_t *ids, int count, float *x);
int cpu_head(cpu_backend *b, int rows, const float *norm, float epsilon, const cpu_weight *head, const float *x, float *normed, float *logits);

// Chooses per_token experts by logits; ids ascending. Used by cpu_layer, and by tests on its own.
void cpu_route(const cpu_layer_call *c, const float *logits, int32_t *ids, float *gates);
#endif
