#include "signals_darwin.h"

#include <dispatch/dispatch.h>
#include <mach/mach.h>
#include <stdlib.h>
#include <sys/sysctl.h>
#include <unistd.h>

int coli_memory_read(coli_memory *out)
{
	size_t size = sizeof out->total;
	if (sysctlbyname("hw.memsize", &out->total, &size, NULL, 0) != 0)
		return 1;
	vm_statistics64_data_t vm;
	mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
	// mach_host_self adds a reference to the port at every call; it is given back, or the port's count overflows in days.
	mach_port_t host = mach_host_self();
	kern_return_t status = host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&vm, &count);
	mach_port_deallocate(mach_task_self(), host);
	if (status != KERN_SUCCESS)
		return 2;
	out->page = (int64_t)vm_kernel_page_size;
	out->internal = (int64_t)vm.internal_page_count * out->page;
	out->wired = (int64_t)vm.wire_count * out->page;
	out->purgeable = (int64_t)vm.purgeable_count * out->page;
	out->compressor = (int64_t)vm.compressor_page_count * out->page;
	out->decompressions = vm.decompressions;
	out->swapins = vm.swapins;
	task_vm_info_data_t task;
	count = TASK_VM_INFO_COUNT;
	if (task_info(mach_task_self(), TASK_VM_INFO, (task_info_t)&task, &count) != KERN_SUCCESS)
		return 3;
	out->footprint = (int64_t)task.phys_footprint;
	size = sizeof out->pressure;
	if (sysctlbyname("kern.memorystatus_vm_pressure_level", &out->pressure, &size, NULL, 0) != 0)
		return 4;
	return 0;
}

typedef struct {
	dispatch_source_t source;
	dispatch_semaphore_t cancelled;
	int fd;
} pressure_source;

static void pressure_event(void *context)
{
	pressure_source *p = context;
	unsigned char flag = (unsigned char)dispatch_source_get_data(p->source);
	// The pipe does not block; if it is full, the reader has unread news already.
	(void)!write(p->fd, &flag, 1);
}

static void pressure_cancelled(void *context)
{
	pressure_source *p = context;
	dispatch_semaphore_signal(p->cancelled);
}

void *coli_pressure_start(int fd)
{
	pressure_source *p = calloc(1, sizeof *p);
	if (p == NULL)
		return NULL;
	p->fd = fd;
	p->cancelled = dispatch_semaphore_create(0);
	p->source = dispatch_source_create(DISPATCH_SOURCE_TYPE_MEMORYPRESSURE, 0,
		DISPATCH_MEMORYPRESSURE_NORMAL | DISPATCH_MEMORYPRESSURE_WARN | DISPATCH_MEMORYPRESSURE_CRITICAL,
		dispatch_get_global_queue(QOS_CLASS_UTILITY, 0));
	if (p->source == NULL || p->cancelled == NULL) {
		if (p->source != NULL) // a source must be activated before it is released
			dispatch_activate(p->source), dispatch_release(p->source);
		if (p->cancelled != NULL)
			dispatch_release(p->cancelled);
		free(p);
		return NULL;
	}
	dispatch_set_context(p->source, p);
	dispatch_source_set_event_handler_f(p->source, pressure_event);
	dispatch_source_set_cancel_handler_f(p->source, pressure_cancelled);
	dispatch_activate(p->source);
	return p;
}

void coli_pressure_stop(void *source)
{
	pressure_source *p = source;
	dispatch_source_cancel(p->source);
	dispatch_semaphore_wait(p->cancelled, DISPATCH_TIME_FOREVER);
	dispatch_release(p->source);
	dispatch_release(p->cancelled);
	free(p);
}
