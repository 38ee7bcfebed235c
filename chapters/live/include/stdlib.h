#pragma once
#include <stddef.h>

void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *aligned_alloc(size_t alignment, size_t bytes);
void free(void *block);
