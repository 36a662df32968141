// Whose turn it is to write, and how much.
#include <algorithm>
#include <limits>
#include <vector>

#include "base/clock.h"
#include "engine/shard.h"
#include "net/socket.h"

namespace dovetail {

namespace {
constexpr size_t kLeastPiece = 8 * 1024;  // Of a frame, in one turn.
constexpr int64_t kStuck = kSecond / 10;  // Without a confirmation, a peer holds up nobody else.
constexpr int64_t kPause = kSecond / 50;  // After it, turns begin anew.
// Between two looks at what is on its way, where that may be enough and where it cannot be.
constexpr int64_t kLookAgain = kSecond / 20'000, kLookAnyway = kSecond / 1000;
constexpr int64_t kTail = kSecond / 100;  // A transfer's end that is not confirmed by then may be lost.
}  // namespace

void Shard::flush() {
  if (loop_.throttle().limited()) return flushInOrder();
  for (bool again = true; again;) {  // Turns go round, and one whose kernel is full gives up its own.
    const uint64_t before = writes_;
    again = false;
    for (auto& [key, peer] : peers_) {
      if (!waits(peer)) continue;
      peer.link->pump();
      again = again || peer.link->full() || peer.link->closed();
    }
    again = again || writes_ != before;
  }
}

// In turns, so that peers which send to the same one do so one after another rather than all at once.
size_t Shard::allowance(Link& link) {
  constexpr size_t kAll = std::numeric_limits<size_t>::max();
  const Peer& mine = peers_.at({link.peer(), link.lane()});
  // A dedicated hub's link is wider than its peers'; signs of life do not wait.
  const Outgoing* head = mine.queue.head();
  const bool atOnce = link.idle() && (head == nullptr || head->due == kAtOnce);
  const bool hub = job_.options_.node >= job_.options_.contributors;
  if (failed_ || hub || loop_.throttle().limited() || atOnce) return kAll;
  if (head != nullptr && link.idle() && sizeof(Header) + head->header.length <= kLeastPiece) {
    size_t most = 0;
    bool others = false;
    for (const auto& [key, peer] : peers_) {
      most += peer.flying;
      others = others || (&peer != &mine && waits(peer));
    }
    // Too little to fill a queue, whatever has been confirmed meanwhile: not worth to ask the kernel.
    if (most < kLeastPiece) return others ? kLeastPiece : kAll;
  }
  // The lanes to one peer share a way, on which TCP finds its pace.
  const bool alone = std::all_of(peers_.begin(), peers_.end(), [&](auto& entry) {
    auto& [key, peer] = entry;
    return key.first == link.peer() || (!waits(peer) && (peer.flying == 0 || peer.link->closed()));
  });
  if (alone) return kAll;
  const int64_t now = nowNs();
  if (now - lastTurnTaken_ > kPause) startTurns();
  bool longer = false;
  for (const auto& [key, peer] : peers_) longer = longer || (waits(peer) && peer.served < mine.served);
  // No more is on its way than when last looked at and what was written since: mostly that says enough.
  if (now - looked_ > (flying(now) < flight_.budget() ? kLookAnyway : kLookAgain)) lookAround(now);
  const bool full = flying(now) >= flight_.budget();
  if (!full && !longer) {
    lastTurnTaken_ = now;
    return std::max(kLeastPiece, flight_.budget() / 2);
  }
  // Whatever the others do: the rest of a frame is also what tells its peer that we are alive.
  if (!link.idle() && mine.flying == 0 && now - link.lastSent() > kStuck) return kLeastPiece;
  if (full) loop_.wakeAt(now + flight_.nextLook());
  return 0;
}

size_t Shard::flying(int64_t now) const {
  size_t total = 0;
  for (const auto& [key, peer] : peers_) total += now - peer.moved < kStuck ? peer.flying : 0;
  return total;
}

void Shard::lookAround(int64_t now) {
  size_t confirmed = 0;
  for (auto& [key, peer] : peers_) {
    if (peer.flying == 0) continue;
    const size_t left = peer.link->closed() ? 0 : notConfirmed(peer.link->fd());
    confirmed += peer.flying - std::min(left, peer.flying);
    if (left != peer.flying) peer.moved = now;
    peer.flying = left;
  }
  looked_ = now;
  flight_.look(now, confirmed, flying(now), roundTrip(now));
}

// The longest of the least ones: what the way to the farthest peer takes when nothing waits in the network.
int64_t Shard::roundTrip(int64_t now) {
  if (now - roundTripSeen_ < kSecond) return roundTrip_;
  roundTripSeen_ = now;
  roundTrip_ = 0;
  for (const Path& path : paths()) {
    roundTrip_ = std::max(roundTrip_, static_cast<int64_t>(path.info.leastRttSeconds * kSecond));
  }
  return roundTrip_;
}

bool Shard::waits(const Peer& peer) const {
  const Link& link = *peer.link;
  return !link.closed() && !link.full() && !(link.idle() && peer.queue.empty());
}

// With the node after this one: nodes that begin together, as all do in a shuffle, choose different ones, and
// as all go round at the same pace, they go on to do so.
void Shard::startTurns() {
  const auto nodes = static_cast<Node>(job_.options_.labels.size());
  for (auto& [key, peer] : peers_) {
    const auto& [node, lane] = key;
    peer.served = static_cast<uint64_t>(lane * nodes + (node - job_.options_.node + nodes) % nodes);
    writes_ = std::max(writes_, peer.served);
  }
}

void Shard::wrote(Link& link, size_t nbytes) {
  Peer& peer = peers_.at({link.peer(), link.lane()});
  peer.served = ++writes_;
  if (nbytes >= kLeastPiece) {  // Little of it is too little to be worth a wake-up.
    peer.follow = true;
    peer.followed = false;
  }
  if (peer.flying == 0) peer.moved = link.lastSent();
  peer.flying += nbytes;
}

// A packet is missed as soon as a later one arrives. The last one of a transfer has none, and TCP may take
// 200 ms to miss it; as long as it takes to try again, if the sender's own queue was full and nothing else is
// on its way. Meanwhile everybody waits, so it is made to look sooner.
void Shard::followUp(int64_t now) {
  for (auto& [key, peer] : peers_) {
    Link& link = *peer.link;
    if (!peer.follow || link.closed()) continue;
    const int64_t tail = std::max(kTail, 2 * roundTrip(now));
    const int64_t due = link.lastSent() + tail;
    if (now < due) {
      loop_.wakeAt(due);
      continue;
    }
    peer.follow = notConfirmed(link.fd()) > 0;
    if (!peer.follow) continue;
    pushPending(link.fd());
    if (!peer.followed && link.idle() && peer.queue.empty()) {
      peer.followed = true;  // One is enough, and a peer that is stopped need not hear more of them.
      beat(peer);
      link.pump();
    }
    loop_.wakeAt(now + tail);
  }
}

void Shard::flushInOrder() {
  // One frame a wake-up may pass the limit, so it has to be the right one: most urgent, then longest served.
  std::vector<Peer*> waiting;
  for (auto& [key, peer] : peers_) {
    if (!peer.queue.empty() && peer.link->idle()) waiting.push_back(&peer);
  }
  std::sort(waiting.begin(), waiting.end(), [](const Peer* a, const Peer* b) {
    const Outgoing &x = *a->queue.head(), &y = *b->queue.head();
    if (x.due != y.due) return x.due < y.due;
    if (x.priority != y.priority) return x.priority < y.priority;
    return a->link->lastSent() < b->link->lastSent();
  });
  for (Peer* peer : waiting) peer->link->pump();
}

}  // namespace dovetail
