#include "kernels.h"

#ifdef __aarch64__
#include "lanes_neon.h"

#include "kernels_body.h"

static const cpu_kernels kernels = KERNELS("neon");
const cpu_kernels *cpu_kernels_neon(void) { return &kernels; }
#else
const cpu_kernels *cpu_kernels_neon(void) { return NULL; }
#endif
