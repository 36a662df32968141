// How far a collective may run ahead: sums begin here only as fast as their results come back.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "engine/shard.h"

namespace dovetail {

namespace {
constexpr int64_t kAhead = 2 << 20;          // Bytes; keeps all links of a fast local network busy.
constexpr int64_t kFarRate = 1'250'000'000;  // Bytes a second; over a longer way, what this fills.
constexpr int64_t kMostAhead = int64_t{256} << 20;
}  // namespace

// A sum begins where nothing joins it before it is sent, and the result tells that all ranks were there.
bool Shard::beginsHere(const Chunk& chunk) const {
  if (chunk.planned) return false;  // A plan says itself what leaves when.
  const auto has = [&](Op op) {
    const Program& program = programOf(chunk);
    return std::any_of(program.begin(), program.end(), [&](const Step& s) { return s.op == op; });
  };
  return has(Op::Copy) && !has(Op::Add);
}

bool Shard::mayBegin(ChunkId id, Slot& slot) {
  const Chunk& chunk = *chunks_[id];
  if (slot.begun || !slot.present || !beginsHere(chunk)) return true;
  Ahead& ahead = ahead_[chunk.spec.push];  // One for each priority: nothing urgent waits for what is not.
  const int64_t far = 2 * roundTrip(nowNs()) * kFarRate / kSecond;
  // One that is larger than the limit must still go when none is under way, or it waits forever.
  if (ahead.bytes > 0 && ahead.bytes + chunk.spec.nbytes > std::clamp(far, kAhead, kMostAhead)) {
    ahead.waiting.emplace_back(id, slot.iteration);
    return false;
  }
  ahead.bytes += chunk.spec.nbytes;
  slot.begun = true;
  return true;
}

void Shard::cameBack(const Chunk& chunk, Slot& slot) {
  if (!std::exchange(slot.begun, false)) return;
  Ahead& ahead = ahead_[chunk.spec.push];
  ahead.bytes -= chunk.spec.nbytes;
  while (!failed_ && !ahead.waiting.empty()) {
    const auto [id, iteration] = ahead.waiting.front();
    Slot& next = chunks_[id]->slots[iteration % 2];
    ahead.waiting.pop_front();
    const size_t left = ahead.waiting.size();
    advance(id, next);
    if (ahead.waiting.size() > left) {  // It has to wait on, and keeps its place.
      ahead.waiting.push_front(ahead.waiting.back());
      ahead.waiting.pop_back();
      return;
    }
  }
}

}  // namespace dovetail
