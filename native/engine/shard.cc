// Links: what is due is sent, who falls silent is lost, who fails takes the job along.
#include "engine/shard.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "base/clock.h"

namespace dovetail {

namespace {
constexpr Iteration kNever = std::numeric_limits<Iteration>::max();  // Behind all that is due.
constexpr int64_t kBeat = kSecond;
constexpr size_t kMaxEvents = 4u << 20;
}  // namespace

void Shard::addLink(Node peer, int lane, int fd) {
  peers_.erase({peer, lane});  // A guest that comes again starts afresh.
  Peer& entry = peers_[{peer, lane}];
  entry.link = std::make_unique<Link>(loop_, *this, fd, peer, lane, job_.options_.credit);
  if (lastTurn_ != 0) entry.link->start();  // A guest that came while the job is running.
}

void Shard::start() {
  grow();
  lastTurn_ = nowNs();
  loop_.addTurnListener(this);
  for (auto& [key, peer] : peers_) peer.link->start();
}

void Shard::grow() {
  const Table& table = job_.table_;
  const auto first = static_cast<ChunkId>(chunks_.size());
  chunks_.resize(table.chunks.size());
  ofTransfer_.resize(table.transfers.size());
  ofTensor_.resize(table.tensors.size());
  for (ChunkId id = first; id < table.chunks.size(); ++id) {
    const ChunkSpec& spec = table.chunks[id];
    if (spec.program < 0 || &job_.shardOf(spec.lane) != this) continue;
    const TensorSpec& tensor = table.tensors[static_cast<size_t>(spec.tensor)];
    auto chunk = std::make_unique<Chunk>();
    chunk->spec = spec;
    chunk->type = tensor.type;
    chunk->group = tensor.group;
    chunk->planned = first == 0;
    chunk->factor = 1.0 / tensor.divisor;
    chunk->count = static_cast<size_t>(spec.nbytes) / sizeOf(tensor.type);
    chunks_[id] = std::move(chunk);
    ofTransfer_[static_cast<size_t>(spec.transfer)].push_back(id);
    ofTensor_[static_cast<size_t>(spec.tensor)].push_back(id);
  }
}

bool Shard::resting(size_t chunks) const {
  for (size_t id = 0; id < std::min(chunks, chunks_.size()); ++id) {
    if (chunks_[id] == nullptr) continue;
    for (const Slot& slot : chunks_[id]->slots) {
      if (slot.iteration != 0) return false;
    }
  }
  return true;
}

void Shard::reroute(const std::vector<int32_t>& programs) {
  for (size_t id = 0; id < programs.size(); ++id) {
    Chunk* chunk = chunks_[id].get();
    if (chunk == nullptr || chunk->spec.program == programs[id]) continue;
    chunk->spec.program = programs[id];
    for (Slot& slot : chunk->slots)
      slot = Slot{};  // A node that is no longer the root keeps no memory for sums.
  }
}

void Shard::retire(const std::vector<int>& tensors) {
  if (failed_) return;
  for (const int tensor : tensors) {
    for (const ChunkId id : std::exchange(ofTensor_[static_cast<size_t>(tensor)], {})) {
      ofTransfer_[static_cast<size_t>(chunks_[id]->spec.transfer)] = {};
      retired_.push_back(id);
    }
  }
  freeRetired();
}

void Shard::freeRetired() {
  std::erase_if(retired_, [&](ChunkId id) {
    const Chunk& chunk = *chunks_[id];
    if (chunk.slots[0].iteration != 0 || chunk.slots[1].iteration != 0) return false;
    chunks_[id].reset();
    return true;
  });
}

void Shard::replayUnborn() {
  auto waiting = std::move(unborn_);
  unborn_.clear();
  unbornBytes_ = 0;
  for (Unborn& frame : waiting) {
    if (failed_) return;
    if (frame.header.chunk >= chunks_.size()) {
      unbornBytes_ += frame.header.length;
      unborn_.push_back(std::move(frame));
      continue;
    }
    Link& link = *peers_.at({frame.peer, frame.lane}).link;
    if (!fits(frame.peer, frame.header)) return failJob(frame.peer, "sent a frame that does not fit the job");
    partialArrived(link, frame.header, std::move(frame.payload));
  }
  flush();
}

void Shard::stop() {
  loop_.removeTurnListener(this);
  for (auto& [key, peer] : peers_) peer.link->close();
  failed_ = true;  // Whatever is still asked of us is too late.
  peers_.clear();
  chunks_.clear();
  ofTransfer_.clear();
  ofTensor_.clear();
  atWindow_.clear();
  atRelease_.clear();
  retired_.clear();
  ahead_.clear();
  gets_.clear();
}

bool Shard::drained() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const auto& entry) {
    const Peer& peer = entry.second;
    return peer.link->closed() || (peer.queue.empty() && peer.link->idle());
  });
}

bool Shard::owes() const {
  for (const auto& chunk : chunks_) {
    if (chunk == nullptr) continue;
    const Program& program = programOf(*chunk);
    for (const Slot& slot : chunk->slots) {
      if (slot.iteration != 0 && slot.pc < program.size() && program[slot.pc].op == Op::Offer) return true;
    }
  }
  return false;
}

void Shard::sayBye() {
  for (auto& [key, peer] : peers_) peer.queue.push(kNever, 0, {.kind = Kind::Bye}, nullptr);
  flush();
}

void Shard::failJob(Node peer, const std::string& reason) {
  failed_ = true;
  job_.fail(peer, reason);
}

void Shard::abort(const Failure& failure) {
  failed_ = true;
  if (aborted_) return;
  aborted_ = true;
  auto reason = std::make_shared<std::vector<std::byte>>(failure.reason.size());
  std::memcpy(reason->data(), failure.reason.data(), failure.reason.size());
  for (auto& [key, peer] : peers_) {
    peer.queue.clear();
    peer.beats = false;
    peer.link->leaveCallersMemory();
    if (key.first == failure.peer || peer.link->closed()) continue;
    peer.owned.push_back(reason);
    peer.queue.push(kAtOnce, 0,
                    {.length = static_cast<uint32_t>(reason->size()),
                     .chunk = static_cast<uint32_t>(failure.peer),
                     .iteration = failure.step,
                     .kind = Kind::Abort},
                    reason->data());
  }
  flush();
}

std::vector<Path> Shard::paths() const {
  std::vector<Path> result;
  for (const auto& [key, peer] : peers_) result.push_back({key.first, key.second, pathInfo(peer.link->fd())});
  return result;
}

void Shard::addSent(std::map<Priority, uint64_t>& sums) const {
  for (const auto& chunk : chunks_) {
    if (chunk == nullptr) continue;
    if (chunk->pushed > 0) sums[chunk->spec.push] += chunk->pushed;
    if (chunk->pulled > 0) sums[chunk->spec.pull] += chunk->pulled;
  }
}

void Shard::setInUse(bool& direction, bool used, int64_t now) {
  if (direction == used) return;
  direction = used;
  if (inUse_ > 0) countUse(now);
  useSince_ = now;
  inUse_ += used ? 1 : -1;
}

void Shard::countUse(int64_t now) {
  busyNs_.fetch_add(now - useSince_, std::memory_order_relaxed);
  useSince_ = now;
}

void Shard::setHyper(Iteration iteration, int group, const Hyper& values) {
  Hypers& entry = hypers_[iteration % hypers_.size()];
  if (entry.iteration != iteration) entry = {iteration, {}};
  const auto index = static_cast<size_t>(group);
  if (entry.groups.size() <= index) entry.groups.resize(index + 1);
  entry.groups[index] = {true, values};
}

void Shard::sendHyper(Iteration iteration, int group, const Hyper& values) {
  setHyper(iteration, group, values);
  auto copy = std::make_shared<std::vector<std::byte>>(sizeof(double) * 7);
  const double v[7] = {values.lr,    values.momentum, values.dampening, values.weightDecay,
                       values.beta1, values.beta2,    values.eps};
  std::memcpy(copy->data(), v, sizeof v);
  for (auto& [key, peer] : peers_) {
    if (peer.left) continue;
    peer.owned.push_back(copy);
    // Ahead of every gradient of this iteration on the same link, whatever their priority.
    peer.queue.push(kAtOnce, 0,
                    {.length = sizeof v,
                     .chunk = static_cast<uint32_t>(group),
                     .iteration = iteration,
                     .kind = Kind::Hyper},
                    copy->data());
  }
  flush();
}

void Shard::send(Node node, int lane, Iteration due, Priority priority, const Header& header,
                 const std::byte* payload) {
  const auto found = peers_.find({node, lane});
  if (isGuest(node) && (found == peers_.end() || found->second.left)) return;  // Guests come and go.
  if (found == peers_.end()) return failJob(node, "is not connected");
  if (found->second.left) return failJob(node, "has left the job");
  found->second.queue.push(due, priority, header, payload);
}

bool Shard::urgent(Link& link) {
  const Outgoing* head = peers_.at({link.peer(), link.lane()}).queue.head();
  // Signs of life and of failure are small and may not wait.
  return head != nullptr && (head->header.kind == Kind::Beat || head->header.kind == Kind::Abort);
}

void Shard::dropGuests() {
  std::erase_if(peers_,
                [&](const auto& entry) { return isGuest(entry.first.first) && entry.second.link->closed(); });
}

OutFrame Shard::nextFrame(Link& link) {
  Peer& peer = peers_.at({link.peer(), link.lane()});
  Outgoing item = peer.queue.pop();
  // Until the kernel has taken the last one: waiting for its credit, or under a rate limit, is use, too.
  if (!peer.sending && item.header.length > 0) setInUse(peer.sending, true, nowNs());
  if (item.header.kind == Kind::Value) item.payload = copyForValue(peer, item.header);
  return {.header = item.header, .payload = item.payload, .priority = item.priority};
}

bool Shard::hasNext(Link& link) const {
  return !peers_.at({link.peer(), link.lane()}).queue.empty();
}

void Shard::frameSent(Link& link, const OutFrame& frame) {
  const Header& header = frame.header;
  job_.counters_.bytesSent.fetch_add(sizeof(Header) + header.length, std::memory_order_relaxed);
  job_.counters_.framesSent.fetch_add(1, std::memory_order_relaxed);
  Peer& peer = peers_.at({link.peer(), link.lane()});
  if (peer.queue.empty()) {
    setInUse(peer.sending, false, link.lastSent());
    peer.owned.clear();
  }
  if (header.kind == Kind::Beat) peer.beats = false;
  if (header.kind != Kind::Partial && header.kind != Kind::Result) return;
  Chunk& chunk = *chunks_[header.chunk];
  (header.kind == Kind::Partial ? chunk.pushed : chunk.pulled) += header.length;
  if (job_.options_.trace) {
    events_.push_back({0, chunk.spec.tensor, header.chunk, link.peer(), header.iteration, frame.started,
                       nowNs(), header.length, frame.priority});
  }
  Slot& slot = chunk.slots[header.iteration % 2];
  if (slot.iteration != header.iteration || --slot.sending > 0) return;
  advance(header.chunk, slot);
}

void Shard::byeArrived(Link& link) {
  peers_.at({link.peer(), link.lane()}).left = true;
  if (isGuest(link.peer())) return link.close();
  for (const auto& chunk : chunks_) {
    // What travels on another lane may still be on its way.
    if (chunk == nullptr || chunk->spec.lane != link.lane()) continue;
    for (const Slot& slot : chunk->slots) {
      if (slot.iteration != 0 && needs(slot, programOf(*chunk), link.peer())) {
        return failJob(link.peer(), "has left the job");
      }
    }
  }
}

void Shard::linkLost(Link& link, const std::string& reason) {
  Peer& peer = peers_.at({link.peer(), link.lane()});
  setInUse(peer.sending, false, nowNs());
  setInUse(peer.receiving, false, nowNs());
  if (peer.left) return forgetFrames(peer);
  peer.queue.clear();
  peer.left = true;
  peer.owned.clear();
  if (!isGuest(link.peer())) failJob(link.peer(), reason);
}

// What a peer that has left did not take is nobody's any more; the caller's memory must not wait for it.
void Shard::forgetFrames(Peer& peer) {
  std::vector<Header> forgotten;
  if (const Header* half = peer.link->sending()) forgotten.push_back(*half);
  while (!peer.queue.empty()) forgotten.push_back(peer.queue.pop().header);
  for (const Header& header : forgotten) {
    if (failed_ || (header.kind != Kind::Partial && header.kind != Kind::Result)) continue;
    Slot& slot = chunks_[header.chunk]->slots[header.iteration % 2];
    if (slot.iteration == header.iteration && --slot.sending == 0) advance(header.chunk, slot);
  }
}

void Shard::checkPeers(int64_t now) {
  // After a pause of this process itself the peers' words are still in the kernel: hear them first.
  const bool slept = now - lastTurn_ > kSecond;
  lastTurn_ = now;
  const auto timeout = static_cast<int64_t>(job_.options_.timeoutSeconds * kSecond);
  const int64_t patience = timeout > 0 ? std::min(kBeat, timeout / 4) : kBeat;
  for (auto& [key, peer] : peers_) {
    Link& link = *peer.link;
    if (link.closed()) continue;
    if (now - link.lastSent() > patience && link.idle()) beat(peer);
    if (timeout > 0 && !slept && !peer.left && now - link.lastReceived() > timeout) {
      char text[64];
      std::snprintf(text, sizeof text, "silent for %.1f s",
                    static_cast<double>(now - link.lastReceived()) / kSecond);
      link.close();
      linkLost(link, text);
    }
  }
}

void Shard::beat(Peer& peer) {
  if (std::exchange(peer.beats, true)) return;
  peer.queue.push(kAtOnce, 0, {.kind = Kind::Beat}, nullptr);
}

void Shard::onTurn(int64_t now) {
  while (!failed_ && !ready_.empty()) {
    const Ready next = ready_.top();
    ready_.pop();
    Slot& slot = chunks_[next.chunk]->slots[next.iteration % 2];
    if (slot.iteration == next.iteration) finish(next.chunk, slot);
  }
  if (inUse_ > 0) countUse(now);
  checkPeers(now);
  flush();
  followUp(now);
  dropGuests();
  if (!retired_.empty()) freeRetired();
  if (!events_.empty()) {
    std::lock_guard lock(job_.mutex_);
    // Nobody drains them: keep the beginning, which is what a picture shows.
    if (job_.events_.size() < kMaxEvents)
      job_.events_.insert(job_.events_.end(), events_.begin(), events_.end());
    events_.clear();
  }
}

bool Shard::idle() const {
  return openSlots_ == 0 && gets_.empty() && unborn_.empty() &&
         std::all_of(peers_.begin(), peers_.end(), [](const auto& entry) {
           const auto& [link, queue] = std::tie(entry.second.link, entry.second.queue);
           return queue.empty() && link->idle() && link->receiving() == nullptr;
         });
}

}  // namespace dovetail
