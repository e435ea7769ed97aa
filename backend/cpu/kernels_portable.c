#include <stdint.h>

#include "lanes_portable.h"

#include "kernels_body.h"

static const cpu_kernels kernels = KERNELS("portable");
const cpu_kernels *cpu_kernels_portable(void) { return &kernels; }
