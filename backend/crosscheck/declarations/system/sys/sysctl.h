#pragma once
#include <stddef.h>
int sysctlbyname(const char *name, void *old, size_t *oldBytes, void *new, size_t newBytes);
