#include "engine/squares.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "engine/job.h"

namespace dovetail {

bool Job::isRoot(const ChunkSpec& chunk) const {
  if (chunk.program < 0) return false;
  const Program& program = table_.programs[static_cast<size_t>(chunk.program)];
  return std::any_of(program.begin(), program.end(), [](const Step& s) { return s.op == Op::Finish; });
}

void Job::watchSquares(Iteration iteration) {
  const auto planned = table_.chunks.begin() + static_cast<std::ptrdiff_t>(planned_);
  const auto roots =
      std::count_if(table_.chunks.begin(), planned, [&](const ChunkSpec& c) { return isRoot(c); });
  squares_[iteration % 2].begin(iteration, static_cast<int>(roots), planned_);
}

void Job::chunkSquared(ChunkId chunk, Iteration iteration, double square) {
  if (!squares_[iteration % 2].note(chunk, square)) return;
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

std::pair<Waited, double> Job::waitSquares(Iteration iteration, double seconds) {
  const Squares& squares = squares_[iteration % 2];
  if (!squares.wanted(iteration)) throw std::logic_error("this iteration's squares were not asked for");
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [&] { return squares.complete() || settled_ == shards_.size(); });
  if (squares.complete()) return {Waited::Done, squares.total()};
  return {settled_ == shards_.size() ? Waited::Failed : Waited::TimedOut, 0.0};
}

}  // namespace dovetail
