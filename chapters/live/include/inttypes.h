#pragma once
#include <stdint.h>

#define PRId64 "lld"
#define PRIu64 "llu"
