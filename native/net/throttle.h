// A token bucket: the engine's own rate limit, for machines where the network cannot be shaped.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace dovetail {

class Throttle {
 public:
  explicit Throttle(double bytesPerSecond) : rate_(bytesPerSecond), tokens_(burst()) {}

  bool limited() const { return rate_ > 0; }

  // Nanoseconds until a frame may leave; 0 = now. A frame may overdraw, so that any size can go.
  int64_t waitFor(int64_t now) {
    if (!limited()) return 0;
    tokens_ = std::min(burst(), tokens_ + rate_ * static_cast<double>(now - last_) / kSecond);
    last_ = now;
    return tokens_ >= 0 ? 0 : static_cast<int64_t>(-tokens_ / rate_ * kSecond) + 1;
  }
  void spend(size_t nbytes) {
    if (limited()) tokens_ -= static_cast<double>(nbytes);
  }

 private:
  double burst() const { return rate_ * 0.001; }

  double rate_;
  double tokens_;
  int64_t last_ = nowNs();
};

}  // namespace dovetail
