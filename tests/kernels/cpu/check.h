// CHECK(condition): ends a C++ test with status 1 and the place, if the condition is false.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);  \
      std::exit(1);                                                                 \
    }                                                                               \
  } while (0)
