// Opaque sizes: this is compiled, never linked.
#pragma once
#include <stddef.h>
typedef struct opaque_thread *pthread_t;
typedef struct {
	long signature;
	char opaque[56];
} pthread_attr_t, pthread_mutex_t;
typedef struct {
	long signature;
	char opaque[40];
} pthread_cond_t;
typedef struct {
	long signature;
	char opaque[8];
} pthread_mutexattr_t, pthread_condattr_t;
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int pthread_join(pthread_t thread, void **result);
int pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int pthread_mutex_destroy(pthread_mutex_t *mutex);
int pthread_mutex_lock(pthread_mutex_t *mutex);
int pthread_mutex_unlock(pthread_mutex_t *mutex);
int pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes);
int pthread_cond_destroy(pthread_cond_t *condition);
int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int pthread_cond_signal(pthread_cond_t *condition);
int pthread_cond_broadcast(pthread_cond_t *condition);
