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
}  // namespace

void Shard::flush() {
  if (loop_.throttle().limited()) return flushInOrder();
  for (uint64_t before = writes_ - 1; before != writes_;) {  // Turns go round.
    before = writes_;
    for (auto& [key, peer] : peers_) {
      if (waits(peer)) peer.link->pump();
    }
  }
}

// In turns, so that peers which send to the same one do so one after another rather than all at once.
size_t Shard::allowance(Link& link) {
  constexpr size_t kAll = std::numeric_limits<size_t>::max();
  const Peer& mine = peers_.at({link.peer(), link.lane()});
  // A dedicated hub's link is wider than its peers'; signs of life do not wait.
  const Outgoing* head = mine.queue.head();
  const bool atOnce = link.idle() && (head == nullptr || head->due == kAtOnce);
  if (job_.options_.node >= job_.options_.contributors || loop_.throttle().limited() || atOnce) return kAll;
  size_t flying = 0, confirmed = 0;
  bool alone = true, longer = false;
  for (auto& [key, peer] : peers_) {
    if (peer.flying > 0) {
      const size_t left = peer.link->closed() ? 0 : notConfirmed(peer.link->fd());
      confirmed += peer.flying - std::min(left, peer.flying);
      peer.flying = left;
    }
    flying += peer.flying;
    if (&peer == &mine) continue;
    alone = alone && peer.flying == 0 && !waits(peer);
    longer = longer || (waits(peer) && peer.link->lastSent() < link.lastSent());
  }
  if (alone) return kAll;
  const int64_t now = nowNs();
  flight_.look(now, confirmed, flying, roundTrip(now));
  if (flying >= flight_.budget()) {
    loop_.wakeAt(now + flight_.nextLook());
    return 0;
  }
  return longer ? 0 : std::max(kLeastPiece, flight_.budget() / 2);
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

void Shard::wrote(Link& link, size_t nbytes) {
  ++writes_;
  peers_.at({link.peer(), link.lane()}).flying += nbytes;
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
