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
  const int64_t far = 2 * std::min(roundTrip(nowNs()), kSecond) * kFarRate / kSecond;
  // In the order of the calls, which is the same on all ranks: two that let later ones pass each other's
  // first would wait for each other. One that is larger than the limit must still go when none is under way.
  const bool fits =
      ahead.bytes == 0 || ahead.bytes + chunk.spec.nbytes <= std::clamp(far, kAhead, kMostAhead);
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
    if (next == nullptr || next->iteration != iteration ||
        next->resultHere) {  // Nobody waits for it any more.
      ahead.waiting.pop_front();
      continue;
    }
    advance(id, *next);
    if (!next->begun) return;  // There is no room yet.
  }
}

}  // namespace dovetail
