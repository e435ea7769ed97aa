//go:build darwin || metalsim

// Feed-forward networks: the routed experts of a layer, shared experts and dense layers, and the sum that ends a layer.
#include "metal_internal.h"
#include <stdlib.h>
#include <string.h>

// How many rows of an expert are computed together: few share one reading of the weights, many fill a matrix tile.
static uint32_t item_rows(uint32_t count) { return count >= GEMM_MIN_ROWS ? GEMM_ROWS : count == 1 ? 1 : count == 2 ? 2 : MAX_XROWS; }

static void gate_up(coli_metal_submit *submit, const coli_operand *gate, const coli_operand *up, bool aligned, ExpertParams p, uint32_t items, uint32_t rows) {
    coli_constants constants = {.format = gate->format, .group_units = gate->group_units, .whole = gate->whole && aligned,
                                .format_b = up->format, .group_units_b = up->group_units, .whole_b = up->whole && aligned};
    if (rows == GEMM_ROWS) {
        coli_encode(submit, KERNEL_EXPERT_GEMM_GATE_UP, &constants, &p, sizeof p, divide_up(p.inner_width, GEMM_OUTPUTS / 2), items, 1);
    } else {
        constants.xrows = rows;
        const bool staged = stages(gate->format, gate->group_units) && stages(up->format, up->group_units);
        constants.few = few_gate_rows(staged, rows, p.inner_width, items);
        const uint32_t outputs = MATVEC_SIMDGROUPS * gate_rows(staged, rows, constants.few != 0);
        coli_encode(submit, KERNEL_EXPERT_GATE_UP, &constants, &p, sizeof p, divide_up(p.inner_width, outputs), items, 1);
    }
}

static void down(coli_metal_submit *submit, const coli_operand *w, ExpertParams p, uint32_t items, uint32_t rows) {
    coli_constants constants = {.format = w->format, .group_units = w->group_units, .whole = w->whole && p.inner_width % 4 == 0};
    if (rows == GEMM_ROWS) {
        coli_encode(submit, KERNEL_EXPERT_GEMM_DOWN, &constants, &p, sizeof p, divide_up(p.hidden, GEMM_OUTPUTS), items, 1);
    } else {
        constants.xrows = rows;
        coli_encode(submit, KERNEL_EXPERT_DOWN, &constants, &p, sizeof p, divide_up(p.hidden, MATVEC_SIMDGROUPS * down_rows(stages(w->format, w->group_units), rows)), items, 1);
    }
}

// ---- one network for consecutive rows

uint64_t coli_network_bytes(uint32_t rows, uint32_t inner) {
    return (uint64_t)rows * (sizeof(ExpertItem) + sizeof(Pair) + (uint64_t)inner * sizeof(float)) + 4 * 256;
}

coli_network coli_network_open(coli_metal_submit *submit, coli_operand gate, coli_operand up, coli_operand down_weight, uint32_t rows, uint32_t hidden,
                               uint32_t inner, bool many) {
    coli_network n = {.gate = gate, .up = up, .down = down_weight, .hidden = hidden, .inner_width = inner, .rows = rows,
                      .xrows = many ? GEMM_ROWS : least(item_rows(rows), MAX_XROWS)};
    n.item_count = divide_up(rows, n.xrows);
    ExpertItem *items = coli_scratch_take(submit, n.item_count * sizeof(ExpertItem), &n.items);
    Pair *pairs = coli_scratch_take(submit, rows * sizeof(Pair), &n.pairs);
    coli_scratch_take(submit, (uint64_t)rows * inner * sizeof(float), &n.inner);
    if (submit->status != COLI_METAL_OK) return n;
    for (uint32_t i = 0; i < rows; i++) pairs[i] = (Pair){.input = i, .output = i};
    for (uint32_t i = 0; i < n.item_count; i++) {
        const uint32_t first = i * n.xrows;
        const uint32_t count = rows - first < n.xrows ? rows - first : n.xrows;
        items[i] = (ExpertItem){.gate = gate.matrix, .up = up.matrix, .down = down_weight.matrix, .first = first, .count = count};
    }
    return n;
}

static ExpertParams network_params(const coli_network *n) {
    return (ExpertParams){.items = n->items, .pairs = n->pairs, .inner = n->inner, .hidden = n->hidden, .inner_width = n->inner_width};
}

void coli_network_gate_up(coli_metal_submit *submit, const coli_network *n, uint64_t input) {
    ExpertParams p = network_params(n);
    p.input = input;
    submit->products += (uint64_t)n->rows * n->hidden * n->inner_width * 3;
    gate_up(submit, &n->gate, &n->up, input % 16 == 0 && n->hidden % 4 == 0, p, n->item_count, n->xrows);
}

void coli_network_down(coli_metal_submit *submit, const coli_network *n, uint64_t output, uint32_t flags) {
    ExpertParams p = network_params(n);
    p.output = output;
    p.flags = flags;
    down(submit, &n->down, p, n->item_count, n->xrows);
}

// ---- routed experts

static bool same_kind(const coli_operand *a, const coli_operand *b) {
    return a->format == b->format && a->group_units == b->group_units && a->whole == b->whole;
}

// One expert, resolved. Experts of equal kind are computed by the same dispatches.
typedef struct {
    coli_operand gate, up, down;
    uint32_t first, count, rows; // rows: item_rows
    bool encoded;
} work;

static int check_call(const coli_moe_call *call, const coli_expert *experts, const int32_t *rows, const int32_t *slots, coli_metal_error *error) {
    for (uint32_t i = 0; i < call->experts; i++) {
        const coli_expert *e = &experts[i];
        int status = coli_block_check(&e->gate, "expert gate", call->inner, call->hidden, error);
        if (status == COLI_METAL_OK) status = coli_block_check(&e->up, "expert up", call->inner, call->hidden, error);
        if (status == COLI_METAL_OK) status = coli_block_check(&e->down, "expert down", call->hidden, call->inner, error);
        if (status != COLI_METAL_OK) return status;
        if (e->first > call->pairs || e->count > call->pairs - e->first) return coli_fail(error, COLI_METAL_ARGUMENT, "expert %u names rows that are not there", i);
    }
    for (uint32_t i = 0; i < call->pairs; i++) {
        if (rows[i] < 0 || (uint32_t)rows[i] >= call->input_rows || slots[i] < 0 || (uint32_t)slots[i] >= call->output_rows) {
            return coli_fail(error, COLI_METAL_ARGUMENT, "experts: row %d of %u to slot %d of %u", rows[i], call->input_rows, slots[i], call->output_rows);
        }
    }
    return COLI_METAL_OK;
}

// Encodes works[begin … end) as one command buffer: all gate and up products, a barrier, all down products.
static void encode_works(coli_metal_submit *submit, work *works, uint32_t begin, uint32_t end, ExpertItem *items, uint32_t *item_count, ExpertParams p) {
    enum { MAX_KINDS = 64 };
    struct {
        const work *of;
        uint32_t first_item, items;
    } kinds[MAX_KINDS];
    uint32_t kind_count = 0;
    const bool aligned = p.input % 16 == 0 && p.hidden % 4 == 0;
    coli_encode_begin(submit);
    for (uint32_t i = begin; i < end; i++) {
        if (works[i].encoded) continue;
        if (kind_count == MAX_KINDS) {
            coli_submit_fail(submit, COLI_METAL_ARGUMENT, "more than %d kinds of experts in one block", MAX_KINDS);
            return;
        }
        kinds[kind_count].of = &works[i];
        kinds[kind_count].first_item = *item_count;
        for (uint32_t j = i; j < end; j++) {
            work *w = &works[j];
            if (w->encoded || w->rows != works[i].rows || !same_kind(&w->gate, &works[i].gate) || !same_kind(&w->up, &works[i].up) ||
                !same_kind(&w->down, &works[i].down)) {
                continue;
            }
            w->encoded = true;
            for (uint32_t done = 0; done < w->count; done += w->rows) {
                const uint32_t count = w->count - done < w->rows ? w->count - done : w->rows;
                items[(*item_count)++] = (ExpertItem){.gate = w->gate.matrix, .up = w->up.matrix, .down = w->down.matrix, .first = w->first + done, .count = count};
            }
        }
        kinds[kind_count].items = *item_count - kinds[kind_count].first_item;
        kind_count++;
    }
    for (uint32_t k = 0; k < kind_count; k++) {
        p.first_item = kinds[k].first_item;
        gate_up(submit, &kinds[k].of->gate, &kinds[k].of->up, aligned, p, kinds[k].items, kinds[k].of->rows);
    }
    coli_encode_barrier(submit);
    for (uint32_t k = 0; k < kind_count; k++) {
        p.first_item = kinds[k].first_item;
        down(submit, &kinds[k].of->down, p, kinds[k].items, kinds[k].of->rows);
    }
    coli_encode_commit(submit);
}

static void encode_call(coli_metal_submit *submit, const coli_moe_call *call, const float *input, float *output, const coli_expert *experts, const int32_t *rows, const int32_t *slots, work *works) {
    ExpertParams p = {.hidden = call->hidden, .inner_width = call->inner};
    ExpertItem *items = coli_scratch_take(submit, call->pairs * sizeof(ExpertItem), &p.items);
    Pair *pairs = coli_scratch_take(submit, call->pairs * sizeof(Pair), &p.pairs);
    coli_scratch_take(submit, (uint64_t)call->pairs * call->inner * sizeof(float), &p.inner);
    p.input = coli_floats(submit, input, (uint64_t)call->input_rows * call->hidden, "experts' input");
    p.output = coli_floats(submit, output, (uint64_t)call->output_rows * call->hidden, "experts' output");
    if (submit->status != COLI_METAL_OK) return;
    for (uint32_t i = 0; i < call->pairs; i++) pairs[i] = (Pair){.input = (uint32_t)rows[i], .output = (uint32_t)slots[i]};
    for (uint32_t i = 0; i < call->experts; i++) {
        const coli_expert *e = &experts[i];
        works[i] = (work){.gate = coli_weight(submit, &e->gate, "expert gate"), .up = coli_weight(submit, &e->up, "expert up"),
                          .down = coli_weight(submit, &e->down, "expert down"), .first = e->first, .count = e->count, .rows = item_rows(e->count),
                          .encoded = e->count == 0};
    }
    if (submit->status != COLI_METAL_OK) return;

    const uint64_t most = coli_command_buffer_products(submit->metal);
    uint32_t item_count = 0, begin = 0;
    uint64_t products = 0;
    for (uint32_t i = 0; i < call->experts; i++) {
        const uint64_t own = (uint64_t)works[i].count * call->hidden * call->inner * 3;
        // The last command buffer takes whatever is left.
        if (i > begin && products + own > most && submit->buffer_count < SUBMIT_COMMAND_BUFFERS - 1) {
            submit->products = products;
            encode_works(submit, works, begin, i, items, &item_count, p);
            begin = i;
            products = 0;
        }
        products += own;
    }
    submit->products = products;
    encode_works(submit, works, begin, call->experts, items, &item_count, p);
}

int coli_metal_moe_block_begin(coli_metal *metal, const coli_moe_call *call, const float *input, float *output, const coli_expert *experts,
                               const int32_t *rows, const int32_t *slots, coli_metal_submit **out, coli_metal_error *error) {
    *out = NULL;
    int status = check_call(call, experts, rows, slots, error);
    if (status != COLI_METAL_OK) return status;
    @autoreleasepool {
        const uint64_t bytes = (uint64_t)call->pairs * (sizeof(ExpertItem) + sizeof(Pair) + (uint64_t)call->inner * sizeof(float)) + 4 * 256;
        const uint64_t works_bytes = (uint64_t)call->experts * sizeof(work); // host-only, at the scratch buffer's end
        coli_metal_submit *submit = coli_submit_open(metal, bytes + works_bytes + 256, error);
        if (submit == NULL) {
            status = COLI_METAL_MEMORY;
        } else {
            uint64_t unused;
            work *works = coli_scratch_take(submit, works_bytes, &unused);
            if (works != NULL) encode_call(submit, call, input, output, experts, rows, slots, works);
            submit->experts = call->experts;
            if (submit->status == COLI_METAL_OK) {
                coli_submit_seal(submit);
                *out = submit;
            } else {
                status = coli_submit_close(submit, error);
                coli_count(metal, &metal->counters.blocks_failed, 1);
            }
        }
    }
    return status;
}

int coli_metal_moe_block_end(coli_metal *metal, coli_metal_submit *submit, coli_metal_error *error) {
    int status;
    @autoreleasepool {
        coli_submit_wait(submit);
        const uint32_t experts = submit->experts;
        status = coli_submit_close(submit, error);
        if (status == COLI_METAL_OK) {
            coli_count(metal, &metal->counters.blocks, 1);
            coli_count(metal, &metal->counters.experts, experts);
        } else {
            coli_count(metal, &metal->counters.blocks_failed, 1);
        }
    }
    return status;
}

int coli_metal_moe_block(coli_metal *metal, const coli_moe_call *call, const float *input, float *output, const coli_expert *experts, const int32_t *rows,
                         const int32_t *slots, coli_metal_error *error) {
    coli_metal_submit *submit;
    const int status = coli_metal_moe_block_begin(metal, call, input, output, experts, rows, slots, &submit, error);
    return status == COLI_METAL_OK ? coli_metal_moe_block_end(metal, submit, error) : status;
}

int coli_metal_combine(coli_metal *metal, const float *gates, const float *output, const float *shared, float *x, uint32_t rows, uint32_t per_token,
                       uint32_t hidden, coli_metal_error *error) {
    if (rows == 0) return COLI_METAL_OK;
    int status = COLI_METAL_MEMORY;
    @autoreleasepool {
        const uint64_t gate_bytes = (uint64_t)rows * per_token * sizeof(float);
        coli_metal_submit *submit = coli_submit_open(metal, gate_bytes + 256, error);
        if (submit != NULL) {
            const coli_constants none = {0};
            CombineParams p = {.rows = rows, .per_token = per_token, .hidden = hidden};
            p.gates = coli_scratch_copy(submit, gates, gate_bytes);
            p.output = coli_floats(submit, output, (uint64_t)rows * per_token * hidden, "experts' output");
            p.shared_output = coli_floats(submit, shared, (uint64_t)rows * hidden, "shared experts' output");
            p.x = coli_floats(submit, x, (uint64_t)rows * hidden, "residual stream");
            coli_encode_begin(submit);
            coli_encode(submit, KERNEL_COMBINE, &none, &p, sizeof p, divide_up(hidden, ELEMENT_THREADS), rows, 1);
            coli_encode_commit(submit);
            coli_submit_seal(submit);
            status = coli_submit_close(submit, error);
        }
    }
    return status;
}
