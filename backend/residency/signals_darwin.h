#pragma once
#include <stdint.h>

// What the kernel says of memory, in bytes and pages counted since the system started.
typedef struct {
	int64_t total, internal, wired, purgeable, compressor; // of the system
	int64_t footprint;                                      // of this process
	uint64_t decompressions, swapins;                       // pages
	int64_t page;
	int32_t pressure; // 1 normal, 2 warn, 4 critical
} coli_memory;

// Fills *out; returns 0, or the number of the question that failed: 1 total, 2 system, 3 process, 4 pressure.
int coli_memory_read(coli_memory *out);

// Writes one byte (2 warn, 4 critical, 1 normal) to fd for each pressure event, until stopped. Returns NULL on failure.
// coli_pressure_stop waits until no handler runs any more; fd belongs to the caller.
void *coli_pressure_start(int fd);
void coli_pressure_stop(void *source);
