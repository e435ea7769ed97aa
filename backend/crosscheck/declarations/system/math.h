#pragma once
#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
float sqrtf(float x);
float rintf(float x);
float expf(float x);
float logf(float x);
float fabsf(float x);
float fmaf(float x, float y, float z);
float fmaxf(float x, float y);
float fminf(float x, float y);
float tanhf(float x);
double exp(double x);
double sqrt(double x);
