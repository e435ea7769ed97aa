// Opaque sizes: this is compiled, never linked.
#pragma once
typedef struct {
    long signature;
    char opaque[56];
} pthread_mutex_t;
typedef struct {
    long signature;
    char opaque[40];
} pthread_cond_t;
typedef struct pthread_attributes pthread_attributes_t;
int pthread_mutex_init(pthread_mutex_t *mutex, const pthread_attributes_t *attributes);
int pthread_mutex_destroy(pthread_mutex_t *mutex);
int pthread_mutex_lock(pthread_mutex_t *mutex);
int pthread_mutex_unlock(pthread_mutex_t *mutex);
int pthread_cond_init(pthread_cond_t *condition, const pthread_attributes_t *attributes);
int pthread_cond_destroy(pthread_cond_t *condition);
int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int pthread_cond_broadcast(pthread_cond_t *condition);
