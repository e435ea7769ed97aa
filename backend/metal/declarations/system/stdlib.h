#pragma once
#include <stddef.h>
void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *realloc(void *memory, size_t bytes);
void free(void *memory);
