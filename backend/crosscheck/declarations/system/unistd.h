#pragma once
#include <stddef.h>
long write(int file, const void *from, size_t bytes);
