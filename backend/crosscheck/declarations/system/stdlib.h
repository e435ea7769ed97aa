#pragma once
#include <stddef.h>
void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *realloc(void *memory, size_t bytes);
void free(void *memory);
void qsort(void *from, size_t count, size_t bytes, int (*compare)(const void *, const void *));
int posix_memalign(void **memory, size_t alignment, size_t bytes);
void *aligned_alloc(size_t alignment, size_t bytes);
