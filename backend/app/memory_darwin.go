package app

/*
#include <mach/mach.h>
#include <sys/sysctl.h>

typedef struct { long long total, available, file, compressed, process; } colibri_memory;

// Pages are counted as Activity Monitor counts them: free includes speculative pages, file cache is external plus purgeable.
static colibri_memory colibri_read_memory(void) {
	colibri_memory m = {-1, -1, -1, -1, -1};
	size_t size = sizeof m.total;
	if (sysctlbyname("hw.memsize", &m.total, &size, NULL, 0) != 0) m.total = -1;
	vm_statistics64_data_t vm;
	mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
	mach_port_t host = mach_host_self();
	if (host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&vm, &count) == KERN_SUCCESS) {
		long long page = (long long)vm_kernel_page_size;
		m.available = (long long)vm.free_count * page;
		m.file = (long long)(vm.external_page_count + vm.purgeable_count) * page;
		m.compressed = (long long)vm.compressor_page_count * page;
	}
	mach_port_deallocate(mach_task_self(), host);
	task_vm_info_data_t task;
	mach_msg_type_number_t taskCount = TASK_VM_INFO_COUNT;
	if (task_info(mach_task_self(), TASK_VM_INFO, (task_info_t)&task, &taskCount) == KERN_SUCCESS)
		m.process = (long long)task.phys_footprint;
	return m;
}
*/
import "C"

// systemMemory asks the kernel.
func systemMemory() SystemMemory {
	m := C.colibri_read_memory()
	return SystemMemory{
		TotalBytes: int64(m.total), FreeBytes: int64(m.available), FileCacheBytes: int64(m.file),
		CompressedBytes: int64(m.compressed), ProcessBytes: int64(m.process),
	}
}
