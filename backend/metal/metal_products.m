//go:build darwin || metalsim

// Weights resolved for the GPU, products with them, and the calls that are one product: gemm, embed, norm, head.
#include "metal_internal.h"
#include <string.h>

static const char *const format_names[] = {"none", "f32", "bf16", "f16", "int8-row", "int4-row", "int2-row", "int4-grouped", "int3-g64", "fp8-e4m3-b128"};

// Row length in bytes and scales of a row (of a row of tiles for fp8); false for a format without kernels.
static bool row_layout(const coli_block *b, uint64_t *row_bytes, uint64_t *row_groups) {
    const uint64_t c = b->columns;
    *row_groups = 0;
    switch (b->format) {
    case FORMAT_F32: *row_bytes = 4 * c; return true;
    case FORMAT_BF16:
    case FORMAT_F16: *row_bytes = 2 * c; return true;
    case FORMAT_INT8_ROW: *row_bytes = c, *row_groups = 1; return true;
    case FORMAT_INT4_ROW: *row_bytes = (c + 1) / 2, *row_groups = 1; return true;
    case FORMAT_INT2_ROW: *row_bytes = (c + 3) / 4, *row_groups = 1; return true;
    case FORMAT_INT4_GROUP:
        if (b->group < 16 || b->group % 16 != 0) return false;
        *row_bytes = (c + 1) / 2, *row_groups = (c + b->group - 1) / b->group;
        return true;
    case FORMAT_INT3_GROUP64: *row_groups = (c + 63) / 64, *row_bytes = *row_groups * 24; return true;
    case FORMAT_FP8_BLOCK128: *row_bytes = c, *row_groups = (c + 127) / 128; return true;
    default: return false;
    }
}

static uint64_t scale_rows(const coli_block *b) { return b->format == FORMAT_FP8_BLOCK128 ? ((uint64_t)b->rows + 127) / 128 : b->rows; }

int coli_block_check(const coli_block *block, const char *what, uint32_t rows, uint32_t columns, coli_metal_error *error) {
    uint64_t row_bytes, row_groups;
    if (!row_layout(block, &row_bytes, &row_groups)) {
        return coli_fail(error, COLI_METAL_ARGUMENT, "%s: format %u (group %u) has no Metal kernel", what, block->format, block->group);
    }
    const char *name = format_names[block->format];
    if (block->rows != rows || block->columns != columns) {
        return coli_fail(error, COLI_METAL_ARGUMENT, "%s: %s weight is %u×%u, %u×%u expected", what, name, block->rows, block->columns, rows, columns);
    }
    if (block->data_bytes < row_bytes * rows || block->scale_count < row_groups * scale_rows(block)) {
        return coli_fail(error, COLI_METAL_ARGUMENT, "%s: %s weight of %u×%u has %llu bytes and %llu scales, too few", what, name, rows, columns,
                         (unsigned long long)block->data_bytes, (unsigned long long)block->scale_count);
    }
    return COLI_METAL_OK;
}

coli_operand coli_weight(coli_metal_submit *submit, const coli_block *block, const char *what) {
    coli_operand w = {0};
    uint64_t row_bytes = 0, row_groups = 0;
    if (submit->status != COLI_METAL_OK || !row_layout(block, &row_bytes, &row_groups)) return w;
    w.matrix.rows = block->rows;
    w.matrix.columns = block->columns;
    w.matrix.row_bytes = (uint32_t)row_bytes;
    w.matrix.row_groups = (uint32_t)row_groups;
    w.matrix.data = coli_address(submit, block->data, row_bytes * block->rows, what);
    if (row_groups > 0) w.matrix.scales = coli_address(submit, block->scales, row_groups * scale_rows(block) * sizeof(float), what);
    w.format = block->format;
    w.group_units = block->format == FORMAT_INT4_GROUP ? block->group / UNIT_COLUMNS : 1;
    w.whole = block->columns % span_columns(block->format) == 0 && w.matrix.data % 16 == 0;
    if (submit->status == COLI_METAL_OK && !w.whole) coli_count(submit->metal, &submit->metal->counters.unaligned_products, 1);
    return w;
}

uint64_t coli_floats(coli_metal_submit *submit, const float *pointer, uint64_t count, const char *what) {
    return coli_address(submit, pointer, count * sizeof(float), what);
}

void coli_multiply(coli_metal_submit *submit, const coli_operand *w, coli_product product) {
    const uint32_t outputs = product.outputs ? product.outputs : w->matrix.rows;
    const uint32_t blocks = product.blocks ? product.blocks : 1;
    const bool aligned = product.x % 16 == 0 && product.x_stride % 4 == 0 && product.x_block % 4 == 0;
    coli_constants constants = {.format = w->format, .group_units = w->group_units, .whole = w->whole && aligned};
    MatvecParams p = {.w = w->matrix, .x = product.x, .y = product.y, .bias = product.bias, .x_stride = product.x_stride, .y_stride = product.y_stride,
                      .outputs = outputs, .block_rows = product.block_rows, .block_first = product.block_first, .x_block = product.x_block,
                      .y_block = product.y_block, .flags = product.flags};
    submit->products += (uint64_t)outputs * blocks * w->matrix.columns * product.count;
    uint32_t most = MAX_DISPATCH_OUTPUTS / outputs / blocks;
    if (most == 0) most = 1;
    for (uint32_t first = 0; first < product.count; first += most) {
        const uint32_t count = product.count - first < most ? product.count - first : most;
        p.count = count;
        p.x = product.x + (uint64_t)first * product.x_stride * sizeof(float);
        p.y = product.y + (uint64_t)first * product.y_stride * sizeof(float);
        if (product.many) {
            coli_encode(submit, KERNEL_GEMM, &constants, &p, sizeof p, divide_up(outputs, GEMM_OUTPUTS), divide_up(count, GEMM_ROWS), blocks);
        } else {
            constants.xrows = count == 1 ? 1 : count == 2 ? 2 : MAX_XROWS;
            constants.share_columns = share_columns(w->format, w->group_units, w->matrix.rows, w->matrix.columns);
            constants.few = !constants.share_columns && few_own_rows(outputs * blocks, constants.xrows);
            const uint32_t rows = constants.share_columns ? MATVEC_ROWS : MATVEC_SIMDGROUPS * own_rows(constants.xrows, constants.few != 0);
            coli_encode(submit, KERNEL_MATVEC, &constants, &p, sizeof p, divide_up(outputs, rows), divide_up(count, constants.xrows), blocks);
        }
    }
}

void coli_encode_norm(coli_metal_submit *submit, uint64_t x, uint64_t weight, uint64_t y, uint32_t width, uint32_t rows, float epsilon) {
    const coli_constants none = {0};
    const NormParams p = {.x = x, .weight = weight, .y = y, .width = width, .x_stride = width, .y_stride = width, .epsilon = epsilon};
    coli_encode(submit, KERNEL_RMS_NORM, &none, &p, sizeof p, rows, 1, 1);
}

// ---- calls

static int finish(coli_metal_submit *submit, coli_metal_error *error) {
    coli_encode_commit(submit);
    coli_submit_seal(submit);
    return coli_submit_close(submit, error);
}

// Rows of one command buffer.
static uint32_t rows_at_once(coli_metal *metal, const coli_block *w, uint32_t rows) {
    const uint64_t each = (uint64_t)w->rows * w->columns;
    uint64_t most = coli_command_buffer_products(metal) / (each ? each : 1);
    if (most < 1) most = 1;
    return most < rows ? (uint32_t)most : rows;
}

int coli_metal_gemm(coli_metal *metal, const coli_block *w, const float *x, float *y, uint32_t rows, coli_metal_error *error) {
    if (rows == 0) return COLI_METAL_OK;
    int status = coli_block_check(w, "linear", w->rows, w->columns, error);
    if (status != COLI_METAL_OK) return status;
    @autoreleasepool {
        coli_metal_submit *submit = coli_submit_open(metal, 0, error);
        if (submit == NULL) {
            status = COLI_METAL_MEMORY;
        } else {
            const coli_operand weight = coli_weight(submit, w, "linear weight");
            const uint64_t from = coli_floats(submit, x, (uint64_t)rows * w->columns, "linear input");
            const uint64_t to = coli_floats(submit, y, (uint64_t)rows * w->rows, "linear output");
            const uint32_t step = rows_at_once(metal, w, rows);
            for (uint32_t first = 0; first < rows && submit->status == COLI_METAL_OK; first += step) {
                const uint32_t count = rows - first < step ? rows - first : step;
                coli_encode_begin(submit);
                coli_multiply(submit, &weight, (coli_product){.x = from + (uint64_t)first * w->columns * sizeof(float),
                                                              .y = to + (uint64_t)first * w->rows * sizeof(float), .x_stride = w->columns,
                                                              .y_stride = w->rows, .count = count, .many = rows >= GEMM_MIN_ROWS});
                coli_encode_commit(submit);
                coli_submit_wait(submit);
            }
            coli_submit_seal(submit);
            status = coli_submit_close(submit, error);
        }
    }
    return status;
}

int coli_metal_embed(coli_metal *metal, const coli_block *table, const int32_t *ids, float *x, uint32_t rows, coli_metal_error *error) {
    if (rows == 0) return COLI_METAL_OK;
    int status = coli_block_check(table, "embedding", table->rows, table->columns, error);
    for (uint32_t i = 0; status == COLI_METAL_OK && i < rows; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= table->rows) status = coli_fail(error, COLI_METAL_ARGUMENT, "token %d is not in the vocabulary of %u", ids[i], table->rows);
    }
    if (status != COLI_METAL_OK) return status;
    @autoreleasepool {
        coli_metal_submit *submit = coli_submit_open(metal, (uint64_t)rows * sizeof *ids + 256, error);
        if (submit == NULL) {
            status = COLI_METAL_MEMORY;
        } else {
            const coli_operand weight = coli_weight(submit, table, "embedding");
            const coli_constants constants = {.format = weight.format, .group_units = weight.group_units, .whole = weight.whole};
            EmbedParams p = {.table = weight.matrix, .count = rows};
            p.ids = coli_scratch_copy(submit, ids, rows * sizeof *ids);
            p.x = coli_floats(submit, x, (uint64_t)rows * table->columns, "embedding output");
            coli_encode_begin(submit);
            coli_encode(submit, KERNEL_EMBED, &constants, &p, sizeof p, divide_up(table->columns, ELEMENT_THREADS * UNIT_COLUMNS), rows, 1);
            status = finish(submit, error);
        }
    }
    return status;
}

int coli_metal_norm(coli_metal *metal, const float *weight, float epsilon, const float *x, float *y, uint32_t width, uint32_t rows, coli_metal_error *error) {
    if (rows == 0) return COLI_METAL_OK;
    int status = COLI_METAL_MEMORY;
    @autoreleasepool {
        coli_metal_submit *submit = coli_submit_open(metal, 0, error);
        if (submit != NULL) {
            const uint64_t from = coli_floats(submit, x, (uint64_t)rows * width, "norm input");
            const uint64_t by = coli_floats(submit, weight, width, "norm weight");
            const uint64_t to = coli_floats(submit, y, (uint64_t)rows * width, "norm output");
            coli_encode_begin(submit);
            coli_encode_norm(submit, from, by, to, width, rows, epsilon);
            status = finish(submit, error);
        }
    }
    return status;
}

int coli_metal_head(coli_metal *metal, const float *norm, float epsilon, const coli_block *head, const float *x, float *normed, float *logits, uint32_t rows,
                    coli_metal_error *error) {
    if (rows == 0) return COLI_METAL_OK;
    int status = coli_block_check(head, "head", head->rows, head->columns, error);
    if (status != COLI_METAL_OK) return status;
    if (rows > rows_at_once(metal, head, rows)) { // more than one command buffer
        status = coli_metal_norm(metal, norm, epsilon, x, normed, head->columns, rows, error);
        return status == COLI_METAL_OK ? coli_metal_gemm(metal, head, normed, logits, rows, error) : status;
    }
    status = COLI_METAL_MEMORY;
    @autoreleasepool {
        coli_metal_submit *submit = coli_submit_open(metal, 0, error);
        if (submit != NULL) {
            const coli_operand weight = coli_weight(submit, head, "head");
            const uint64_t from = coli_floats(submit, x, (uint64_t)rows * head->columns, "head input");
            const uint64_t by = coli_floats(submit, norm, head->columns, "final norm");
            const uint64_t between = coli_floats(submit, normed, (uint64_t)rows * head->columns, "final normed rows");
            const uint64_t to = coli_floats(submit, logits, (uint64_t)rows * head->rows, "logits");
            coli_encode_begin(submit);
            coli_encode_norm(submit, from, by, between, head->columns, rows, epsilon);
            coli_encode_barrier(submit);
            coli_multiply(submit, &weight, (coli_product){.x = between, .y = to, .x_stride = head->columns, .y_stride = head->rows, .count = rows,
                                                              .many = rows >= GEMM_MIN_ROWS});
            status = finish(submit, error);
        }
    }
    return status;
}
