// CLOCK_MONOTONIC in nanoseconds: the same clock as Python's time.monotonic_ns.
#pragma once

#include <time.h>

#include <cstdint>

namespace dovetail {

inline int64_t nowNs() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

constexpr int64_t kSecond = 1'000'000'000;

}  // namespace dovetail
