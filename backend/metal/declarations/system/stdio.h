#pragma once
#include <stdarg.h>
#include <stddef.h>
int snprintf(char *to, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
int vsnprintf(char *to, size_t bytes, const char *format, va_list arguments) __attribute__((format(printf, 3, 0)));
