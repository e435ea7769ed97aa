// The part of Mach that Colibri uses. Counts are in natural_t, as the kernel counts them.
#pragma once
#include <stddef.h>
#include <stdint.h>
typedef int kern_return_t, integer_t;
typedef unsigned int natural_t, mach_port_t, mach_msg_type_number_t;
typedef mach_port_t host_t, task_t, ipc_space_t, mach_port_name_t;
typedef int host_flavor_t;
typedef unsigned int task_flavor_t;
typedef integer_t *host_info64_t, *task_info_t;
typedef uintptr_t vm_size_t;
typedef uint64_t mach_vm_size_t;
enum { KERN_SUCCESS = 0, HOST_VM_INFO64 = 4, TASK_VM_INFO = 22 };
extern vm_size_t vm_kernel_page_size;
extern mach_port_t mach_task_self_;
#define mach_task_self() mach_task_self_
struct vm_statistics64 {
	natural_t free_count, active_count, inactive_count, wire_count;
	uint64_t zero_fill_count, reactivations, pageins, pageouts, faults, cow_faults, lookups, hits, purges;
	natural_t purgeable_count, speculative_count;
	uint64_t decompressions, compressions, swapins, swapouts;
	natural_t compressor_page_count, throttled_count, external_page_count, internal_page_count;
	uint64_t total_uncompressed_pages_in_compressor;
} __attribute__((aligned(8)));
typedef struct vm_statistics64 vm_statistics64_data_t;
#define HOST_VM_INFO64_COUNT ((mach_msg_type_number_t)(sizeof(vm_statistics64_data_t) / sizeof(integer_t)))
// Up to what is used; the kernel fills as much as the count allows.
typedef struct {
	mach_vm_size_t virtual_size;
	integer_t region_count, page_size;
	mach_vm_size_t resident_size, resident_size_peak, device, device_peak, internal, internal_peak, external, external_peak, reusable, reusable_peak,
		purgeable_volatile_pmap, purgeable_volatile_resident, purgeable_volatile_virtual, compressed, compressed_peak, compressed_lifetime, phys_footprint;
} task_vm_info_data_t;
#define TASK_VM_INFO_COUNT ((mach_msg_type_number_t)(sizeof(task_vm_info_data_t) / sizeof(natural_t)))
mach_port_t mach_host_self(void);
kern_return_t mach_port_deallocate(ipc_space_t task, mach_port_name_t name);
kern_return_t host_statistics64(host_t host, host_flavor_t flavor, host_info64_t out, mach_msg_type_number_t *count);
kern_return_t task_info(task_t task, task_flavor_t flavor, task_info_t out, mach_msg_type_number_t *count);
