// How far a collective may run ahead: sums begin here only as fast as their results come back.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "engine/shard.h"

namespace dovetail {

namespace {
constexpr int64_t kAhead = 2 << 20;          // Bytes; keeps the links of a fast local network busy.
constexpr int64_t kFarRate = 5'000'000'000;  // Bytes a second; over a longer way, what this fills.
constexpr int64_t kMostAhead = int64_t{256} << 20;
constexpr int64_t kEach = 2;  // Chunks for every connection: in a shuffle each peer sums others.
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
  const int64_t far = 2 * std::min(roundTrip(nowNs()), kSecond) * kFarRate / kSecond;
  const int64_t wide = kEach * static_cast<int64_t>(peers_.size()) * chunk.spec.nbytes;
  const int64_t limit = std::clamp(std::max(far, wide), kAhead, kMostAhead);
  // In the order of the calls: if a later one passed an earlier one here, a rank that waits for the earlier
  // before it makes the later would wait forever. What is larger than the limit goes when none is under way.
  const bool fits = ahead.bytes == 0 || ahead.bytes + chunk.spec.nbytes <= limit;
  const std::pair entry(id, slot.iteration);
  const bool first = !ahead.waiting.empty() && ahead.waiting.front() == entry;
  if (!fits || !(first || ahead.waiting.empty())) {
    if (!first) ahead.waiting.push_back(entry);
    return false;
  }
  if (first) ahead.waiting.pop_front();
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
    Slot* next = chunks_[id] == nullptr ? nullptr : &chunks_[id]->slots[iteration % 2];
    if (next == nullptr || next->iteration != iteration || next->begun ||
        next->resultHere) {  // Only if a peer did what it must not; nobody waits for it any more.
      ahead.waiting.pop_front();
      continue;
    }
    advance(id, *next);
    if (!next->begun) return;  // There is no room yet.
  }
}

}  // namespace dovetail
