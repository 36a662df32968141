// How many bytes may be on their way on all links together, where several are in use: what the network
// confirms in a few milliseconds. When all send to all, more than that only fills queues on the way, the
// senders' own and those of receivers that several have chosen at once, until packets are lost.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace dovetail {

class Flight {  // In a turn of its loop only.
 public:
  size_t budget() const { return budget_; }
  int64_t nextLook() const { return kAhead / 5; }  // Nanoseconds until it is worth to look again.

  // `confirmed` bytes since the last look, `flying` are still on their way; `roundTrip` is the network's own.
  void look(int64_t now, size_t confirmed, size_t flying, int64_t roundTrip) {
    if (wasFlying_ && now - last_ < kGap) {
      spent_ += now - last_;
      confirmed_ += confirmed;
    } else {  // Idle for a while: this stretch says nothing about the network.
      spent_ = 0;
      confirmed_ = 0;
    }
    last_ = now;
    // Confirmed before we looked again: it is us who are slow, and nothing waits in the network.
    if (limited_ && flying == 0) budget_ = std::min(budget_ + budget_ / 4, kMost);
    limited_ = flying >= budget_;
    wasFlying_ = flying > 0;
    if (spent_ < kStretch) return;
    rates_[next_++ % rates_.size()] = static_cast<double>(confirmed_) / static_cast<double>(spent_);
    spent_ = 0;
    confirmed_ = 0;
    const double rate = *std::max_element(rates_.begin(), rates_.end());
    const int64_t ahead = std::max(kAhead, 2 * roundTrip);
    budget_ = std::max(kLeast, static_cast<size_t>(rate * static_cast<double>(ahead)));
  }

 private:
  static constexpr int64_t kAhead = kSecond / 400;
  static constexpr int64_t kStretch =
      kSecond / 50;  // Long enough for a rate, short enough to follow a change.
  static constexpr int64_t kGap = kSecond / 50;
  static constexpr size_t kLeast = 16 * 1024;
  static constexpr size_t kMost = 64 * 1024 * 1024;
  static constexpr size_t kFirst = 128 * 1024;  // Before anything is known.

  size_t budget_ = kFirst;
  std::array<double, 16> rates_{};  // Bytes a nanosecond, of the last stretches; the best one counts.
  size_t next_ = 0;
  int64_t last_ = 0;
  int64_t spent_ = 0;
  size_t confirmed_ = 0;
  bool wasFlying_ = false, limited_ = false;
};

}  // namespace dovetail
