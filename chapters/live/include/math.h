#pragma once

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)

double fmax(double a, double b);
double fmin(double a, double b);
double exp(double x);
double log(double x);
double tanh(double x);
#define sqrt __builtin_sqrt
#define floor __builtin_floor
float expf(float x);
float tanhf(float x);
#define signbit(x) __builtin_signbit(x)
#define fabs __builtin_fabs
#define fabsf __builtin_fabsf
