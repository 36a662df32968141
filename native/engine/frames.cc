// What arrives: each frame is checked, put in its place, and taken up by the chunk it belongs to.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "engine/shard.h"

namespace dovetail {

namespace {
constexpr size_t kMaxUnborn = 1 << 20;  // Frames; a peer that far ahead does not run our program.
}

bool Shard::fits(const Header& header) const {
  return header.chunk < chunks_.size() && chunks_[header.chunk] != nullptr &&
         (header.length == 0 || header.length == static_cast<uint64_t>(chunks_[header.chunk]->spec.nbytes));
}

std::byte* Shard::placeFor(Link& link, const Header& header) {
  const auto scratch = [&] {
    link.scratch().reserve(header.length);
    return link.scratch().data();
  };
  if (failed_) return scratch();
  switch (header.kind) {
    case Kind::Partial:
      if (header.chunk >= chunks_.size()) return isGuest(link.peer()) ? nullptr : scratch();
      return isGuest(link.peer()) || !fits(header) ? nullptr : placeForPartial(link, header);
    case Kind::Result:
      return isGuest(link.peer()) || !fits(header) ? nullptr : placeForResult(header);
    case Kind::Put:
      return isGuest(link.peer()) || !fits(header) ? nullptr
                                                   : masterSlot(*chunks_[header.chunk], header.slot);
    case Kind::Value: {
      const auto found = gets_.find({header.chunk, header.slot});
      if (!fits(header) || found == gets_.end()) return nullptr;
      return found->second.memory + chunks_[header.chunk]->spec.offset;
    }
    case Kind::Hyper:
      return header.length == sizeof(double) * 7 ? scratch() : nullptr;
    case Kind::Abort:
      return header.length <= 4096 ? scratch() : nullptr;
    default:
      return nullptr;
  }
}

std::byte* Shard::placeForPartial(Link& link, const Header& header) {
  Slot* slot = openSlot(header.chunk, header.iteration);
  if (slot == nullptr) return nullptr;
  Chunk& chunk = *chunks_[header.chunk];
  const bool wide = sizeOf(chunk.type) == sumSizeOf(chunk.type);
  if (wide && slot->sum == SumState::Empty && mayAdd(chunk, *slot, link.peer())) {
    slot->buffer.reserve(header.length);  // The first arrival becomes the sum where it lands.
    slot->sum = SumState::Filling;
    slot->filling = link.peer();
    return slot->buffer.data();
  }
  link.scratch().reserve(header.length);
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
    slot.buffer.reserve(header.length);
    place = slot.buffer.data();
  }
  slot.value = place;
  return place;
}

void Shard::frameArrived(Link& link, const Header& header, int64_t started) {
  job_.counters_.bytesReceived.fetch_add(sizeof(Header) + header.length, std::memory_order_relaxed);
  job_.counters_.framesReceived.fetch_add(1, std::memory_order_relaxed);
  if (failed_ && header.kind != Kind::Abort) return;
  switch (header.kind) {
    case Kind::Partial:
    case Kind::Result:
      if (isGuest(link.peer())) break;
      if (header.kind == Kind::Partial && header.chunk >= chunks_.size()) {
        if (unborn_.size() >= kMaxUnborn) break;
        unborn_.push_back({link.peer(), link.lane(), header, std::exchange(link.scratch(), Buffer())});
        return;
      }
      if (!fits(header)) break;
      if (job_.options_.trace) {
        const Chunk& chunk = *chunks_[header.chunk];
        events_.push_back({1, chunk.spec.tensor, header.chunk, link.peer(), header.iteration, started,
                           nowNs(), header.length,
                           header.kind == Kind::Partial ? chunk.spec.push : chunk.spec.pull});
      }
      if (header.kind == Kind::Result) return resultArrived(header);
      return partialArrived(link, header, std::nullopt);
    case Kind::Ask: {
      // It may overtake the gradient that its sender pushed before it.
      Slot* slot = isGuest(link.peer()) || !fits(header) ? nullptr : openSlot(header.chunk, header.iteration);
      if (slot == nullptr) break;
      slot->askers.push_back(link.peer());
      advance(header.chunk, *slot);
      return;
    }
    case Kind::Put:
      if (!fits(header)) break;
      return putArrived(header);
    case Kind::Get:
      if (!fits(header) || header.slot > 2) break;
      return serveGet(header.chunk, link.peer(), header.slot, header.iteration);
    case Kind::Value: {
      const auto found = gets_.find({header.chunk, header.slot});
      if (!fits(header) || found == gets_.end()) break;
      const int ticket = found->second.ticket;
      gets_.erase(found);
      return job_.gotChunk(ticket, (header.flags & kAbsent) != 0, header.iteration,
                           chunks_[header.chunk]->spec.tensor);
    }
    case Kind::Hyper:
      return hyperArrived(link, header);
    case Kind::Beat:
      return;
    case Kind::Abort: {
      const std::string reason(reinterpret_cast<const char*>(link.scratch().data()), header.length);
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
  Slot& slot = chunks_[header.chunk]->slots[header.iteration % 2];
  if (slot.iteration != header.iteration || slot.resultHere) return;
  slot.resultHere = true;
  slot.present = (header.flags & kAbsent) == 0;
  chunks_[header.chunk]->finished = header.iteration;
  advance(header.chunk, slot);
}

void Shard::hyperArrived(Link& link, const Header& header) {
  double v[7];
  std::memcpy(v, link.scratch().data(), sizeof v);
  const Hyper values{v[0], v[1], v[2], v[3], v[4], v[5], v[6]};
  const Hypers& entry = hypers_[header.iteration % hypers_.size()];
  const auto group = static_cast<size_t>(header.chunk);
  if (group > 65535) return failJob(link.peer(), "sent a frame that does not fit the job");
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
