// Sums of squares of the results that this node completes, so that a norm is known before they have
// travelled.
#pragma once

#include <atomic>
#include <numeric>
#include <vector>

#include "base/types.h"

namespace dovetail {

// One iteration's. Two exist, chosen by parity: the caller has read the one before the last when it begins
// anew.
class Squares {
 public:
  // The caller, before its first gradient of the iteration; nothing can be complete without that.
  void begin(Iteration iteration, int roots, size_t chunks) {
    ofChunk_.assign(chunks, 0.0);
    left_ = roots;
    iteration_ = iteration;
  }
  bool wanted(Iteration iteration) const { return iteration_ == iteration; }  // Any thread.
  // The chunk's own shard. True: it was the last.
  bool note(ChunkId chunk, double square) {
    ofChunk_[chunk] = square;
    return --left_ == 0;
  }
  bool complete() const { return left_ == 0; }  // Any thread.
  // After `complete`; the order is the table's, whatever the order of arrival.
  double total() const { return std::accumulate(ofChunk_.begin(), ofChunk_.end(), 0.0); }

 private:
  std::atomic<Iteration> iteration_{0};
  std::atomic<int> left_{0};
  std::vector<double> ofChunk_;  // Each written by its shard alone before `left_` is.
};

}  // namespace dovetail
