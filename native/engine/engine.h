// The threads that jobs share.
#pragma once

#include <memory>
#include <vector>

#include "engine/job.h"
#include "net/loop.h"

namespace dovetail {

class Engine {
 public:
  Engine(int threads, double rate, int credit, bool trace)
      : credit_(credit > 0 ? credit : kCredit), trace_(trace) {
    // Several threads could not keep one limit exactly; where it is needed, one is fast enough.
    const int count = rate > 0 ? 1 : threads;
    for (int i = 0; i < count; ++i) loops_.push_back(std::make_unique<Loop>(rate));
  }

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::unique_ptr<Job> job(JobOptions options) const {
    options.credit = credit_;
    options.trace = trace_;
    std::vector<Loop*> loops;
    for (const auto& loop : loops_) loops.push_back(loop.get());
    return std::make_unique<Job>(std::move(loops), std::move(options));
  }

 private:
  // What waits unsent in the kernel cannot be overtaken: two chunks keep a link busy, more only add delay.
  static constexpr int kCredit = 64 * 1024;

  std::vector<std::unique_ptr<Loop>> loops_;
  int credit_;
  bool trace_;
};

}  // namespace dovetail
