// The part of libdispatch that Colibri uses.
#pragma once
#include <stddef.h>
#include <stdint.h>
#if defined(__OBJC__)
@class OS_dispatch_object;
typedef OS_dispatch_object *dispatch_queue_t, *dispatch_source_t, *dispatch_semaphore_t;
#define DISPATCH_OBJECT_T id
#else
typedef struct dispatch_queue *dispatch_queue_t;
typedef struct dispatch_source *dispatch_source_t;
typedef struct dispatch_semaphore *dispatch_semaphore_t;
// As Apple's C headers have it: any of these types may be passed.
typedef union {
	dispatch_queue_t queue;
	dispatch_source_t source;
	dispatch_semaphore_t semaphore;
} dispatch_object_t __attribute__((__transparent_union__));
#define DISPATCH_OBJECT_T dispatch_object_t
#endif
typedef void (*dispatch_function_t)(void *context);
typedef const struct dispatch_source_type *dispatch_source_type_t;
typedef uint64_t dispatch_time_t;
typedef enum { QOS_CLASS_UTILITY = 0x11 } qos_class_t;
#define DISPATCH_TIME_FOREVER (~0ull)
extern const struct dispatch_source_type _dispatch_source_type_memorypressure;
#define DISPATCH_SOURCE_TYPE_MEMORYPRESSURE (&_dispatch_source_type_memorypressure)
enum { DISPATCH_MEMORYPRESSURE_NORMAL = 1, DISPATCH_MEMORYPRESSURE_WARN = 2, DISPATCH_MEMORYPRESSURE_CRITICAL = 4 };
dispatch_queue_t dispatch_get_main_queue(void);
dispatch_queue_t dispatch_get_global_queue(intptr_t identifier, uintptr_t flags);
dispatch_source_t dispatch_source_create(dispatch_source_type_t type, uintptr_t handle, uintptr_t mask, dispatch_queue_t queue);
uintptr_t dispatch_source_get_data(dispatch_source_t source);
void dispatch_source_set_event_handler_f(dispatch_source_t source, dispatch_function_t handler);
void dispatch_source_set_cancel_handler_f(dispatch_source_t source, dispatch_function_t handler);
void dispatch_source_cancel(dispatch_source_t source);
void dispatch_set_context(DISPATCH_OBJECT_T object, void *context);
void dispatch_activate(DISPATCH_OBJECT_T object);
void dispatch_release(DISPATCH_OBJECT_T object);
dispatch_semaphore_t dispatch_semaphore_create(intptr_t value);
intptr_t dispatch_semaphore_signal(dispatch_semaphore_t semaphore);
intptr_t dispatch_semaphore_wait(dispatch_semaphore_t semaphore, dispatch_time_t timeout);
#if defined(__BLOCKS__)
void dispatch_async(dispatch_queue_t queue, void (^work)(void));
#endif
