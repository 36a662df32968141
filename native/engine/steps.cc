// The interpreter: what a chunk's program does when something it waited for has come.
#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "engine/shard.h"
#include "reduce/sum.h"

namespace dovetail {

namespace {
constexpr int64_t kWorthStaying = 32 * 1024;  // Bytes of a chunk.
}  // namespace

Slot* Shard::openSlot(ChunkId id, Iteration iteration) {
  Chunk& chunk = *chunks_[id];
  Slot& slot = chunk.slots[iteration % 2];
  if (slot.iteration == iteration) return &slot;
  if (slot.iteration != 0 || iteration <= chunk.finished) return nullptr;
  slot.restart(iteration);
  ++openSlots_;
  for (const auto& [key, peer] : peers_) {
    if (peer.left && key.second == chunk.spec.lane && needs(slot, programOf(chunk), key.first))
      failJob(key.first, "has left the job");
  }
  return &slot;
}

bool Shard::needs(const Slot& slot, const Program& program, Node peer) const {
  for (const Step& step : program) {
    if (step.op != Op::Add && step.op != Op::Copy) continue;
    if (std::find(step.peers.begin(), step.peers.end(), peer) == step.peers.end()) continue;
    if (step.op == Op::Copy) return !slot.resultHere;
    return std::find(slot.from.begin(), slot.from.end(), peer) == slot.from.end();
  }
  return false;
}

void Shard::fetch(int transfer, Iteration iteration) {
  if (failed_) return;
  for (const ChunkId id : ofTransfer_[static_cast<size_t>(transfer)]) {
    Chunk& chunk = *chunks_[id];
    Slot* slot = openSlot(id, iteration);
    if (slot == nullptr || slot->fetched) {
      return failJob(job_.options_.node, "submitted an iteration before the one before it was complete");
    }
    const auto& tensor = job_.tensors_[static_cast<size_t>(chunk.spec.tensor)];
    slot->fetched = true;
    if (!tensor.gone[iteration % 2]) {
      slot->local = tensor.local[iteration % 2] + chunk.spec.offset;
      slot->present = true;
      slot->localPending = true;
    }
    slot->from.push_back(job_.options_.node);
    drainEarly(chunk, *slot);  // Absent too: what came early may have waited for our place in the order.
    advance(id, *slot);
  }
  flush();
}

bool Shard::mayAdd(const Chunk& chunk, const Slot& slot, Node from) const {
  if (slot.sum == SumState::Filling) return false;
  if (!job_.options_.deterministic) return true;
  // In rank order: everyone below `from` who takes part must be in the sum already.
  for (const Step& step : programOf(chunk)) {
    if (step.op == Op::Fetch && job_.options_.node < from && (!slot.fetched || slot.localPending))
      return false;
    if (step.op != Op::Add) continue;
    for (const Node peer : step.peers) {
      if (peer >= from) continue;
      if (std::find(slot.from.begin(), slot.from.end(), peer) == slot.from.end()) return false;
      for (const Early& early : slot.early) {
        if (early.from == peer) return false;
      }
    }
  }
  return true;
}

void Shard::contribute(Chunk& chunk, Slot& slot, const std::byte* values) {
  if (slot.sum == SumState::Empty) {
    pool_.fill(slot.buffer, chunk.count * sumSizeOf(chunk.type));
    startSum(chunk.type, slot.buffer.data(), values, chunk.count);
    slot.sum = SumState::Ready;
  } else {
    addTo(chunk.type, slot.buffer.data(), values, chunk.count);
  }
  job_.counters_.chunksSummed.fetch_add(1, std::memory_order_relaxed);
}

void Shard::drainEarly(Chunk& chunk, Slot& slot) {
  const Program& program = programOf(chunk);
  const bool adds =
      std::any_of(program.begin(), program.end(), [](const Step& s) { return s.op == Op::Add; });
  if (!adds) {  // Nothing joins our gradient: send it from where it lies.
    slot.localPending = false;
    return;
  }
  for (bool again = true; again;) {
    again = false;
    // Unless the order matters, a peer's gradient comes first and becomes the sum where it lands: ours, which
    // lies in the caller's memory, would have to be copied.
    if (slot.sum == SumState::Ready || job_.options_.deterministic) again = addLocal(chunk, slot);
    for (size_t i = 0; i < slot.early.size(); ++i) {
      const Node from = slot.early[i].from;
      Early early = std::move(slot.early[i]);
      slot.early.erase(slot.early.begin() + static_cast<std::ptrdiff_t>(i));
      if (mayAdd(chunk, slot, from)) {
        contribute(chunk, slot, early.values.data());
        pool_.give(early.values);
        again = true;
        break;
      }
      slot.early.insert(slot.early.begin() + static_cast<std::ptrdiff_t>(i), std::move(early));
    }
  }
}

bool Shard::addLocal(Chunk& chunk, Slot& slot) {
  if (!slot.localPending || endsAtOurs(chunk) || !mayAdd(chunk, slot, job_.options_.node)) return false;
  slot.localPending = false;
  contribute(chunk, slot, slot.local);
  return true;
}

// At the root our own gradient lies where the result is to go. So the sum of all others is added to it there,
// which saves the copy back; of little that is cheap, and a copy is the caller's before it has been sent.
bool Shard::endsAtOurs(const Chunk& chunk) const {
  if (job_.rule_ != Rule::Mean || job_.options_.deterministic || chunk.spec.nbytes < kWorthStaying)
    return false;
  if (sizeOf(chunk.type) != sumSizeOf(chunk.type)) return false;
  const Program& program = programOf(chunk);
  const auto has = [&](Op op) {
    return std::any_of(program.begin(), program.end(), [&](const Step& s) { return s.op == op; });
  };
  return has(Op::Finish) &&
         !has(Op::Offer);  // Whoever asks later must not be served from the caller's memory.
}

void Shard::advance(ChunkId id, Slot& slot) {
  const Program& program = programOf(*chunks_[id]);
  while (!failed_ && slot.pc < program.size()) {
    if (!runStep(id, slot, program[slot.pc])) return;
    ++slot.pc;
  }
  if (slot.pc < program.size() || slot.sending > 0) return;
  slot.iteration = 0;
  --openSlots_;
  pool_.give(slot.buffer);
  pool_.give(slot.wire);
}

bool Shard::runStep(ChunkId id, Slot& slot, const Step& step) {
  Chunk& chunk = *chunks_[id];
  switch (step.op) {
    case Op::Fetch:
      return slot.fetched;
    case Op::Add: {
      size_t here = 0;
      for (const Node peer : step.peers) {
        here += std::find(slot.from.begin(), slot.from.end(), peer) != slot.from.end();
      }
      if (here < step.peers.size() || !slot.early.empty()) return false;
      // Alone, where all these peers were absent.
      return addLocal(chunk, slot) || !slot.localPending || endsAtOurs(chunk);
    }
    case Op::Send:
      if (!slot.resultHere && !mayBegin(id, slot)) return false;
      if (!slot.resultHere) {  // A partial sum, or our own gradient alone.
        if (slot.sum == SumState::Empty) {
          slot.value = slot.local;
          slot.valueIsCallers = true;
        } else if (chunk.type == DType::BF16 || chunk.type == DType::F16) {
          pool_.fill(slot.wire, chunk.count * sizeOf(chunk.type));
          finishSum(chunk.type, slot.buffer.data(), slot.wire.data(), chunk.count, 1.0);
          slot.value = slot.wire.data();
        } else {
          slot.value = slot.buffer.data();
        }
      }
      sendAll(id, slot, step.peers);
      return true;
    case Op::Copy:
      return slot.resultHere;
    case Op::Finish:
      if (slot.resultHere) return true;
      if (!slot.finishQueued) {
        slot.finishQueued = true;
        ready_.push({chunk.spec.pull, id, slot.iteration});
      }
      return false;
    case Op::Gate:
      if (job_.backwardDone_ >= slot.iteration) return true;
      atWindow_.emplace_back(id, slot.iteration);
      return false;
    case Op::Ask:
      if (chunk.spec.pullWindow != 0 && job_.backwardDone_ < slot.iteration) {
        atWindow_.emplace_back(id, slot.iteration);
        return false;
      }
      send(step.peers[0], chunk.spec.lane, chunk.due(slot.iteration), chunk.spec.pull,
           {.chunk = id, .iteration = slot.iteration, .kind = Kind::Ask}, nullptr);
      return true;
    case Op::Offer:
      slot.offered += static_cast<int>(slot.askers.size());
      sendAll(id, slot, slot.askers);
      slot.askers.clear();
      return slot.offered == static_cast<int>(step.peers.size());
    case Op::Deliver:
      // A forwarded result lies in the caller's memory; it is the caller's only when it has left.
      if (slot.valueIsCallers && slot.sending > 0) return false;
      if (job_.rule_ != Rule::Mean && job_.released_ < slot.iteration) {
        atRelease_.emplace_back(id, slot.iteration);
        return false;
      }
      deliver(id, slot);
      return true;
  }
  return false;
}

void Shard::sendAll(ChunkId id, Slot& slot, const std::vector<Node>& peers) {
  const Chunk& chunk = *chunks_[id];
  Header header{
      .chunk = id, .iteration = slot.iteration, .kind = slot.resultHere ? Kind::Result : Kind::Partial};
  if (slot.present) {
    header.length = static_cast<uint32_t>(chunk.spec.nbytes);
  } else {
    header.flags = kAbsent;
  }
  const Priority priority = slot.resultHere ? chunk.spec.pull : chunk.spec.push;
  slot.sending += static_cast<int>(peers.size());
  for (const Node peer : peers)
    send(peer, chunk.spec.lane, chunk.due(slot.iteration), priority, header, slot.value);
}

void Shard::finish(ChunkId id, Slot& slot) {
  Chunk& chunk = *chunks_[id];
  const int64_t started = job_.options_.trace ? nowNs() : 0;
  if (slot.present) {
    if (job_.rule_ != Rule::Mean) {
      updateMaster(chunk, slot);
      slot.value = chunk.master.data();
    } else if (slot.localPending) {
      slot.localPending = false;
      std::byte* ours = callersMemory(chunk, slot);
      const std::byte* others = slot.sum == SumState::Empty ? nullptr : slot.buffer.data();
      finishAt(chunk.type, ours, others, chunk.count, chunk.factor);
      pool_.give(slot.buffer);
      slot.value = ours;
      slot.valueIsCallers = true;
    } else if (slot.sum == SumState::Empty) {  // The only contributor: its gradient is the mean.
      slot.value = slot.local;
      slot.valueIsCallers = true;
    } else {
      std::byte* out = slot.buffer.data();
      if (sizeOf(chunk.type) != sumSizeOf(chunk.type)) {
        pool_.fill(slot.wire, chunk.count * sizeOf(chunk.type));
        out = slot.wire.data();
      }
      finishSum(chunk.type, slot.buffer.data(), out, chunk.count, chunk.factor);
      slot.value = out;
    }
  }
  if (failed_) return;
  if (chunk.planned && job_.squares_[slot.iteration % 2].wanted(slot.iteration)) {
    job_.chunkSquared(id, slot.iteration,
                      slot.present ? sumOfSquares(chunk.type, slot.value, chunk.count) : 0.0);
  }
  slot.resultHere = true;
  chunk.finished = slot.iteration;
  if (job_.options_.trace) {
    events_.push_back({2, chunk.spec.tensor, id, job_.options_.node, slot.iteration, started, nowNs(),
                       chunk.spec.nbytes, chunk.spec.pull});
  }
  advance(id, slot);
  serveWaitingGets(id);
}

void Shard::updateMaster(Chunk& chunk, Slot& slot) {
  const Hypers& hypers = hypers_[slot.iteration % hypers_.size()];
  const auto group = static_cast<size_t>(chunk.group);
  if (hypers.iteration != slot.iteration || group >= hypers.groups.size() || !hypers.groups[group].first) {
    return failJob(job_.options_.node, "got gradients, but no hyperparameters for them");
  }
  if (!chunk.hasMaster) return failJob(job_.options_.node, "got gradients before initial values");
  if (slot.sum == SumState::Empty) contribute(chunk, slot, slot.local);
  ++chunk.updates;
  const size_t nbytes = static_cast<size_t>(chunk.spec.nbytes);
  const bool first = !chunk.hasState;
  for (int i = 0; i < stateSlots(job_.rule_); ++i) {
    if (!first) break;
    chunk.state[i].reserve(nbytes);
    std::memset(chunk.state[i].data(), 0, nbytes);
  }
  const Hyper& hyper = hypers.groups[group].second;
  const Update update{.rule = job_.rule_,
                      .flags = job_.flags_,
                      .hyper = hyper,
                      .step = chunk.updates,
                      .factor = chunk.factor,
                      .firstMomentum = first};
  applyUpdate(chunk.type, update, slot.buffer.data(), chunk.master.data(), chunk.state[0].data(),
              chunk.state[1].data(), chunk.count);
  chunk.hasState = job_.rule_ != Rule::Sgd || hyper.momentum != 0 || chunk.hasState;
  job_.counters_.updates.fetch_add(1, std::memory_order_relaxed);
}

std::byte* Shard::callersMemory(const Chunk& chunk, const Slot& slot) const {
  const auto& tensor = job_.tensors_[static_cast<size_t>(chunk.spec.tensor)];
  const bool submitted = job_.rule_ == Rule::Mean && !tensor.gone[slot.iteration % 2];
  std::byte* base = submitted ? tensor.local[slot.iteration % 2] : tensor.bound;
  return base == nullptr ? nullptr : base + chunk.spec.offset;
}

void Shard::deliver(ChunkId id, Slot& slot) {
  const Chunk& chunk = *chunks_[id];
  if (slot.present && chunk.spec.nbytes > 0) {
    std::byte* memory = callersMemory(chunk, slot);
    if (memory == nullptr) return failJob(job_.options_.node, "has no memory bound for a result");
    if (slot.value != memory) std::memcpy(memory, slot.value, static_cast<size_t>(chunk.spec.nbytes));
  }
  job_.chunkComplete(chunk.spec.tensor, slot.iteration, slot.present);
}

void Shard::openWindows() {
  if (failed_) return;
  auto waiting = std::move(atWindow_);
  atWindow_.clear();
  for (const auto& [id, iteration] : waiting) {
    Slot& slot = chunks_[id]->slots[iteration % 2];
    if (slot.iteration == iteration) advance(id, slot);
  }
  flush();
}

void Shard::openReleases() {
  if (failed_) return;
  auto waiting = std::move(atRelease_);
  atRelease_.clear();
  for (const auto& [id, iteration] : waiting) {
    Slot& slot = chunks_[id]->slots[iteration % 2];
    if (slot.iteration == iteration) advance(id, slot);
  }
  flush();
}

}  // namespace dovetail
