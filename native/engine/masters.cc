// The root's copies of values and optimizer state: set by Put, read by Get, in any order of arrival.
#include <cstring>

#include "engine/shard.h"

namespace dovetail {

std::byte* Shard::masterSlot(Chunk& chunk, int slot) {
  if (slot < 0 || slot > 2) return nullptr;
  Buffer& buffer = slot == 0 ? chunk.master : chunk.state[slot - 1];
  buffer.reserve(static_cast<size_t>(chunk.spec.nbytes));
  if (slot > 0 && !chunk.hasState) {  // The other state slot must never be read uninitialised.
    Buffer& other = chunk.state[2 - slot];
    other.reserve(static_cast<size_t>(chunk.spec.nbytes));
    std::memset(other.data(), 0, static_cast<size_t>(chunk.spec.nbytes));
  }
  return buffer.data();
}

Node Shard::rootOf(const Chunk& chunk) const {
  for (const Step& step : programOf(chunk)) {
    if (step.op == Op::Finish) return job_.options_.node;
    if (step.op == Op::Send) return step.peers[0];
  }
  return -1;
}

void Shard::putArrived(const Header& header) {
  Chunk& chunk = *chunks_[header.chunk];
  (header.slot == 0 ? chunk.hasMaster : chunk.hasState) = true;
  chunk.updates = header.iteration;
  serveWaitingGets(header.chunk);
}

void Shard::put(int tensor, int slot, std::shared_ptr<std::vector<std::byte>> values, uint32_t step) {
  if (failed_) return;
  for (const ChunkId id : ofTensor_[static_cast<size_t>(tensor)]) {
    Chunk& chunk = *chunks_[id];
    const std::byte* source = values->data() + chunk.spec.offset;
    Header header{.length = static_cast<uint32_t>(chunk.spec.nbytes),
                  .chunk = id,
                  .iteration = step,
                  .kind = Kind::Put,
                  .slot = static_cast<uint8_t>(slot)};
    const Node root = rootOf(chunk);
    if (root == job_.options_.node) {
      std::memcpy(masterSlot(chunk, slot), source, header.length);
      putArrived(header);
      continue;
    }
    const auto found = peers_.find({root, chunk.spec.lane});
    if (found != peers_.end()) found->second.owned.push_back(values);
    send(root, chunk.spec.lane, kAtOnce, 0, header, source);
  }
  flush();
}

void Shard::get(int ticket, int tensor, int slot, std::byte* memory, Iteration version) {
  if (failed_) return;
  for (const ChunkId id : ofTensor_[static_cast<size_t>(tensor)]) {
    Chunk& chunk = *chunks_[id];
    const WaitingGet get{job_.options_.node, static_cast<uint8_t>(slot), static_cast<uint8_t>(ticket),
                         version};
    gets_[{id, get.slot, get.tag}] = {ticket, memory};
    const Node root = rootOf(chunk);
    if (root == job_.options_.node) {
      serveGet(id, get);
    } else {
      send(root, chunk.spec.lane, kAtOnce, chunk.spec.pull,
           {.chunk = id, .iteration = version, .kind = Kind::Get, .slot = get.slot, .tag = get.tag}, nullptr);
    }
  }
  flush();
}

void Shard::cancelGet(int ticket) {
  for (auto& [key, pending] : gets_) {
    if (pending.ticket != ticket) continue;
    pending.memory = nullptr;  // The answer is still due; it will be thrown away.
    for (auto& [where, peer] : peers_) {
      const Header* header = peer.link->receiving();
      if (header != nullptr && header->kind == Kind::Value &&
          key == GetKey{header->chunk, header->slot, header->tag}) {
        peer.link->divert();
      }
    }
  }
}

void Shard::serveGet(ChunkId id, const WaitingGet& get) {
  Chunk& chunk = *chunks_[id];
  if (!chunk.hasMaster || chunk.finished < get.version) {
    chunk.gets.push_back(get);
    return;
  }
  const bool here = get.slot == 0 || chunk.hasState;
  if (get.peer != job_.options_.node) {
    // Behind the results that ranks wait for: a reader may not slow training down.
    return send(get.peer, chunk.spec.lane, chunk.finished + 1, chunk.spec.pull,
                {.length = here ? static_cast<uint32_t>(chunk.spec.nbytes) : 0,
                 .chunk = id,
                 .iteration = chunk.updates,
                 .kind = Kind::Value,
                 .flags = here ? uint8_t{0} : kAbsent,
                 .slot = get.slot,
                 .tag = get.tag},
                nullptr);
  }
  const auto found = gets_.find({id, get.slot, get.tag});
  if (found == gets_.end()) return;
  const PendingGet pending = found->second;
  gets_.erase(found);
  if (here && pending.memory != nullptr) {
    std::memcpy(pending.memory + chunk.spec.offset, masterSlot(chunk, get.slot),
                static_cast<size_t>(chunk.spec.nbytes));
  }
  job_.gotChunk(pending.ticket, !here, chunk.updates, chunk.spec.tensor);
}

void Shard::serveWaitingGets(ChunkId id) {
  Chunk& chunk = *chunks_[id];
  if (chunk.gets.empty()) return;
  auto waiting = std::move(chunk.gets);
  chunk.gets.clear();
  for (const WaitingGet& get : waiting) serveGet(id, get);
}

const std::byte* Shard::copyForValue(Peer& peer, Header& header) {
  Chunk& chunk = *chunks_[header.chunk];
  header.iteration = chunk.updates;
  if (header.length == 0) return nullptr;
  // The next update may run while these bytes leave, so they leave from a copy.
  peer.copy.reserve(header.length);
  std::memcpy(peer.copy.data(), masterSlot(chunk, header.slot), header.length);
  return peer.copy.data();
}

}  // namespace dovetail
