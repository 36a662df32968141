// What arrives: each frame is checked, put in its place, and taken up by the chunk it belongs to.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "engine/shard.h"

namespace dovetail {

namespace {

constexpr size_t kMaxUnborn = 1u << 30;  // Bytes; a peer that far ahead does not run our program.
constexpr size_t kMaxGroups = 1u << 16;
constexpr size_t kMaxReason = 4096;
constexpr size_t kMaxWaiting = 4096;  // Gets of one chunk that wait for a later version.
constexpr size_t kHyperBytes = sizeof(double) * 7;

}  // namespace

// Everything that arrives passes here first, so that no later line meets a frame it cannot handle.
bool Shard::accepts(Link& link, const Header& header) {
  if (failed_) return true;  // It is thrown away.
  const Kind kind = header.kind;
  if (isGuest(link.peer()) && kind != Kind::Get && kind != Kind::Bye && kind != Kind::Beat) return false;
  switch (kind) {
    case Kind::Hyper:
      return header.length == kHyperBytes && header.chunk < kMaxGroups;
    case Kind::Abort:
      return header.length <= kMaxReason;
    case Kind::Beat:
    case Kind::Bye:
      return header.length == 0;
    case Kind::Partial:
      if (header.chunk >= chunks_.size()) {
        return job_.mayGrow() && header.iteration > 0 && unbornBytes_ + header.length <= kMaxUnborn;
      }
      return fits(link.peer(), header);
    case Kind::Result:
    case Kind::Ask:
    case Kind::Put:
    case Kind::Get:
    case Kind::Value:
      return fits(link.peer(), header);
  }
  return false;
}

bool Shard::fits(Node from, const Header& header) const {
  if (!known(header)) return false;
  const Chunk& chunk = *chunks_[header.chunk];
  const bool absent = (header.flags & kAbsent) != 0;
  const auto whole = static_cast<uint64_t>(chunk.spec.nbytes);
  const auto takes = [&](Op op) {
    const Program& program = programOf(chunk);
    return std::any_of(program.begin(), program.end(), [&](const Step& step) {
      return step.op == op &&
             (op == Op::Finish || std::find(step.peers.begin(), step.peers.end(), from) != step.peers.end());
    });
  };
  switch (header.kind) {
    case Kind::Partial:
      return header.iteration > 0 && header.length == (absent ? 0 : whole) && takes(Op::Add);
    case Kind::Result:
      return header.iteration > 0 && header.length == (absent ? 0 : whole) && takes(Op::Copy);
    case Kind::Ask:
      return header.iteration > 0 && header.length == 0 && takes(Op::Offer);
    case Kind::Put:
      return header.length == whole && header.slot <= 2 && takes(Op::Finish);
    case Kind::Get:
      return header.length == 0 && header.slot <= 2 && takes(Op::Finish) && chunk.gets.size() < kMaxWaiting;
    case Kind::Value:
      return header.length == (absent ? 0 : whole) && gets_.contains({header.chunk, header.slot, header.tag});
    default:
      return false;
  }
}

std::byte* Shard::placeFor(Link& link, const Header& header) {
  setInUse(peers_.at({link.peer(), link.lane()}).receiving, true, link.lastReceived());
  const auto scratch = [&] {
    pool_.fill(link.scratch(), header.length);
    return link.scratch().data();
  };
  if (failed_) return scratch();
  switch (header.kind) {
    case Kind::Partial:
      return known(header) ? placeForPartial(link, header) : scratch();
    case Kind::Result:
      return placeForResult(header);
    case Kind::Put:
      return masterSlot(*chunks_[header.chunk], header.slot);
    case Kind::Value: {
      std::byte* memory = gets_.at({header.chunk, header.slot, header.tag}).memory;
      return memory == nullptr ? scratch() : memory + chunks_[header.chunk]->spec.offset;
    }
    default:
      return scratch();
  }
}

std::byte* Shard::placeForPartial(Link& link, const Header& header) {
  Slot* slot = openSlot(header.chunk, header.iteration);
  if (slot == nullptr) return nullptr;
  Chunk& chunk = *chunks_[header.chunk];
  const bool wide = sizeOf(chunk.type) == sumSizeOf(chunk.type);
  if (wide && slot->sum == SumState::Empty && mayAdd(chunk, *slot, link.peer())) {
    pool_.fill(slot->buffer, header.length);  // The first arrival becomes the sum where it lands.
    slot->sum = SumState::Filling;
    slot->filling = link.peer();
    return slot->buffer.data();
  }
  pool_.fill(link.scratch(), header.length);
  return link.scratch().data();
}

std::byte* Shard::placeForResult(const Header& header) {
  Chunk& chunk = *chunks_[header.chunk];
  Slot& slot = chunk.slots[header.iteration % 2];
  const bool contributes =
      programOf(chunk).front().op == Op::Fetch;  // A hub on the way has no gradient of its own.
  if (slot.iteration != header.iteration || slot.fetched != contributes || slot.resultHere) return nullptr;
  std::byte* place = nullptr;
  if (job_.rule_ == Rule::Mean || job_.released_ >= slot.iteration) {
    place = callersMemory(chunk, slot);
  }
  slot.valueIsCallers = place != nullptr;
  if (place == nullptr) {
    pool_.fill(slot.buffer, header.length);
    place = slot.buffer.data();
  }
  slot.value = place;
  return place;
}

void Shard::frameArrived(Link& link, const Header& header, int64_t started) {
  job_.counters_.bytesReceived.fetch_add(sizeof(Header) + header.length, std::memory_order_relaxed);
  job_.counters_.framesReceived.fetch_add(1, std::memory_order_relaxed);
  if (header.length > 0)
    setInUse(peers_.at({link.peer(), link.lane()}).receiving, false, link.lastReceived());
  if (failed_ && header.kind != Kind::Abort) return;
  switch (header.kind) {
    case Kind::Partial:
    case Kind::Result: {
      if (!known(header)) {
        unbornBytes_ += header.length;
        unborn_.push_back({link.peer(), link.lane(), header, std::exchange(link.scratch(), Buffer())});
        return;
      }
      const Chunk& chunk = *chunks_[header.chunk];
      if (job_.options_.trace) {
        events_.push_back({1, chunk.spec.tensor, header.chunk, link.peer(), header.iteration, started,
                           nowNs(), header.length,
                           header.kind == Kind::Partial ? chunk.spec.push : chunk.spec.pull});
      }
      if (header.kind == Kind::Result) return resultArrived(header);
      return partialArrived(link, header, std::nullopt);
    }
    case Kind::Ask: {
      // It may overtake the gradient that its sender pushed before it.
      Slot* slot = openSlot(header.chunk, header.iteration);
      if (slot == nullptr ||
          std::find(slot->asked.begin(), slot->asked.end(), link.peer()) != slot->asked.end())
        break;
      slot->asked.push_back(link.peer());
      slot->askers.push_back(link.peer());
      advance(header.chunk, *slot);
      return;
    }
    case Kind::Put:
      return putArrived(header);
    case Kind::Get:
      return serveGet(header.chunk, {link.peer(), header.slot, header.tag, header.iteration});
    case Kind::Value: {
      const auto found = gets_.find({header.chunk, header.slot, header.tag});
      const int ticket = found->second.ticket;
      gets_.erase(found);
      const bool absent = (header.flags & kAbsent) != 0;
      return job_.gotChunk(ticket, absent, header.iteration, chunks_[header.chunk]->spec.tensor);
    }
    case Kind::Hyper:
      return hyperArrived(link, header);
    case Kind::Beat:
      return;
    case Kind::Abort: {
      std::string reason(reinterpret_cast<const char*>(link.scratch().data()), header.length);
      // It is shown to people and decoded by Python: plain characters only.
      std::replace_if(reason.begin(), reason.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
      failed_ = true;
      return job_.failAt(static_cast<Node>(header.chunk), reason, header.iteration);
    }
    case Kind::Bye:
      return byeArrived(link);
  }
  failJob(link.peer(), "sent a frame that does not fit the job");
}

void Shard::partialArrived(Link& link, const Header& header, std::optional<Buffer> kept) {
  Slot* slot = openSlot(header.chunk, header.iteration);
  const Node from = link.peer();
  if (slot == nullptr || std::find(slot->from.begin(), slot->from.end(), from) != slot->from.end()) {
    return failJob(from, "sent a gradient for an iteration that is not due");
  }
  Chunk& chunk = *chunks_[header.chunk];
  if ((header.flags & kAbsent) == 0) {
    Buffer& values = kept ? *kept : link.scratch();
    slot->present = true;
    if (slot->sum == SumState::Filling && slot->filling == from) {
      slot->sum = SumState::Ready;
    } else if (mayAdd(chunk, *slot, from)) {
      contribute(chunk, *slot, values.data());
    } else {
      slot->early.push_back({from, std::exchange(values, Buffer())});
    }
  }
  slot->from.push_back(from);
  drainEarly(chunk, *slot);
  advance(header.chunk, *slot);
}

void Shard::resultArrived(const Header& header) {
  Chunk& chunk = *chunks_[header.chunk];
  Slot& slot = chunk.slots[header.iteration % 2];
  if (slot.iteration != header.iteration || slot.resultHere) return;
  slot.resultHere = true;
  slot.present = (header.flags & kAbsent) == 0;
  chunk.finished = header.iteration;
  cameBack(chunk, slot);
  advance(header.chunk, slot);
}

void Shard::hyperArrived(Link& link, const Header& header) {
  double v[7];
  std::memcpy(v, link.scratch().data(), sizeof v);
  const Hyper values{v[0], v[1], v[2], v[3], v[4], v[5], v[6]};
  const Hypers& entry = hypers_[header.iteration % hypers_.size()];
  const auto group = static_cast<size_t>(header.chunk);
  if (entry.iteration == header.iteration && group < entry.groups.size() && entry.groups[group].first &&
      !(entry.groups[group].second == values)) {
    char text[160];
    std::snprintf(text, sizeof text,
                  "uses other hyperparameters than its peers (group %zu: lr %g against %g)", group, values.lr,
                  entry.groups[group].second.lr);
    return failJob(link.peer(), text);
  }
  setHyper(header.iteration, static_cast<int>(group), values);
}

}  // namespace dovetail
