// A job's share on one loop: its links, and the chunks of its lanes. Shares nothing with
// other shards, so no step takes a lock.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/chunk.h"
#include "engine/job.h"
#include "net/link.h"
#include "sched/flight.h"
#include "sched/send_queue.h"

namespace dovetail {

class Shard : public LinkOwner, public TurnListener {  // In a turn of its loop only, unless said.
 public:
  Shard(Job& job, Loop& loop) : job_(job), loop_(loop) {}
  ~Shard() override = default;

  Loop& loop() { return loop_; }  // Any thread.

  void addLink(Node peer, int lane, int fd);
  void start();
  void grow();                        // The table has grown. Any thread, while this loop is parked.
  bool resting(size_t chunks) const;  // None of the first so many is on its way. Any thread, likewise.
  void reroute(const std::vector<int32_t>& programs);  // Any thread, likewise.
  void replayUnborn();                                 // Take up the frames that came before their chunks.
  void retire(const std::vector<int>& tensors);
  void stop();
  bool drained() const;  // Nothing left to write.
  bool owes() const;     // A peer has yet to ask for a result that is here.
  void sayBye();
  void abort(const Failure& failure);
  std::vector<Path> paths() const;
  void addSent(std::map<Priority, uint64_t>& sums) const;
  int64_t busyNs() const { return busyNs_.load(std::memory_order_relaxed); }  // Any thread.

  // What the job asks for.
  void fetch(int transfer, Iteration iteration);
  void openWindows();   // The backward pass is over.
  void openReleases();  // Results may be written to bound memory.
  void setHyper(Iteration iteration, int group, const Hyper& values);
  void sendHyper(Iteration iteration, int group, const Hyper& values);  // And set it here.
  void put(int tensor, int slot, std::shared_ptr<std::vector<std::byte>> values, uint32_t step);
  void get(int ticket, int tensor, int slot, std::byte* memory, Iteration version);
  void cancelGet(int ticket);

  // LinkOwner.
  bool accepts(Link& link, const Header& header) override;
  bool urgent(Link& link) override;
  size_t allowance(Link& link) override;
  void wrote(Link& link, size_t nbytes) override;
  bool hasNext(Link& link) const override;
  OutFrame nextFrame(Link& link) override;
  void frameSent(Link& link, const OutFrame& frame) override;
  std::byte* placeFor(Link& link, const Header& header) override;
  void frameArrived(Link& link, const Header& header, int64_t started) override;
  void linkLost(Link& link, const std::string& reason) override;
  void onTurn(int64_t now) override;
  bool idle() const override;

 private:
  struct Peer {
    std::unique_ptr<Link> link;
    SendQueue queue;
    bool left = false;                        // It said goodbye.
    bool beats = false;                       // A sign of life waits to be sent.
    bool sending = false, receiving = false;  // In the middle of it, as the meter of use sees it.
    size_t flying = 0;                        // Bytes that were not confirmed when last looked at.
    int64_t moved = 0;                        // When that last changed.
    uint64_t served = 0;                      // The least of those that wait is next to write.
    bool follow = false;                      // A transfer may have ended here: see that it is confirmed.
    bool followed = false;                    // By a beat, since.
    Buffer copy;  // Payload of a Value frame: the master may change while it is sent.
    std::vector<std::shared_ptr<std::vector<std::byte>>>
        owned;  // Payloads of Put frames, freed when all are sent.
  };
  using Key = std::pair<Node, int>;  // peer, lane
  struct Hypers {
    Iteration iteration = 0;
    std::vector<std::pair<bool, Hyper>> groups;
  };
  struct Ready {
    Priority priority;
    ChunkId chunk;
    Iteration iteration;
    bool operator<(const Ready& other) const {
      if (iteration != other.iteration) return iteration > other.iteration;
      return priority != other.priority ? priority > other.priority : chunk > other.chunk;
    }
  };

  // steps.cc: the interpreter.
  Slot* openSlot(ChunkId id, Iteration iteration);  // Null: the iteration does not fit.
  void advance(ChunkId id, Slot& slot);
  bool runStep(ChunkId id, Slot& slot, const Step& step);  // False: it has to wait.
  void finish(ChunkId id, Slot& slot);
  void updateMaster(Chunk& chunk, Slot& slot);
  void deliver(ChunkId id, Slot& slot);
  void contribute(Chunk& chunk, Slot& slot, const std::byte* values);
  void drainEarly(Chunk& chunk, Slot& slot);
  bool addLocal(Chunk& chunk, Slot& slot);  // False: there is none to add, or not yet.
  bool endsAtOurs(const Chunk& chunk) const;
  bool mayAdd(const Chunk& chunk, const Slot& slot, Node from) const;
  void sendAll(ChunkId id, Slot& slot, const std::vector<Node>& peers);
  std::byte* callersMemory(const Chunk& chunk, const Slot& slot) const;

  // starts.cc: how far a collective may run ahead.
  bool beginsHere(const Chunk& chunk) const;
  bool mayBegin(ChunkId id, Slot& slot);  // False: it is begun when others have come back.
  void cameBack(const Chunk& chunk, Slot& slot);

  // frames.cc: what arrives.
  std::byte* placeForPartial(Link& link, const Header& header);
  std::byte* placeForResult(const Header& header);
  void partialArrived(Link& link, const Header& header, std::optional<Buffer> kept);  // Kept: it came early.
  void resultArrived(const Header& header);
  void hyperArrived(Link& link, const Header& header);
  bool fits(Node from, const Header& header) const;
  bool known(const Header& header) const {
    return header.chunk < chunks_.size() && chunks_[header.chunk] != nullptr;
  }

  // shard.cc: links.
  void byeArrived(Link& link);
  void send(Node peer, int lane, Iteration due, Priority priority, const Header& header,
            const std::byte* payload);
  void failJob(Node peer, const std::string& reason);
  void forgetFrames(Peer& peer);
  void checkPeers(int64_t now);
  void beat(Peer& peer);  // Let it have a sign of life.
  void setInUse(bool& direction, bool used, int64_t now);
  void countUse(int64_t now);
  void dropGuests();   // Those that have gone.
  void freeRetired();  // Chunks that nobody will use again, once they are idle.
  bool isGuest(Node node) const { return node >= static_cast<Node>(job_.options_.labels.size()); }
  bool needs(const Slot& slot, const Program& program, Node peer) const;

  // turns.cc: who may write.
  void flush();
  void flushInOrder();                 // Under a rate limit.
  bool waits(const Peer& peer) const;  // For its turn to write.
  void startTurns();
  void followUp(int64_t now);        // What ends a transfer and may be lost.
  size_t flying(int64_t now) const;  // Bytes on their way, at most; without those to peers that are stuck.
  void lookAround(int64_t now);      // Ask the kernels.
  int64_t roundTrip(int64_t now);    // Nanoseconds.

  // masters.cc: the root's copies.
  std::byte* masterSlot(Chunk& chunk, int slot);
  void putArrived(const Header& header);
  void serveGet(ChunkId id, const WaitingGet& get);
  void serveWaitingGets(ChunkId id);
  Node rootOf(const Chunk& chunk) const;
  const std::byte* copyForValue(Peer& peer, Header& header);

  const Program& programOf(const Chunk& chunk) const {
    return job_.table_.programs[static_cast<size_t>(chunk.spec.program)];
  }

  Job& job_;
  Loop& loop_;
  BufferPool pool_;
  std::map<Key, Peer> peers_;
  std::vector<std::unique_ptr<Chunk>> chunks_;    // By id; null where another shard or node owns it.
  std::vector<std::vector<ChunkId>> ofTransfer_;  // Transfer -> chunks here.
  std::vector<std::vector<ChunkId>> ofTensor_;
  std::vector<ChunkId> retired_;  // Not yet idle.
  size_t openSlots_ = 0;
  std::array<Hypers, 4> hypers_;
  std::priority_queue<Ready> ready_;  // Sums that are complete: the receive side's priority queue.
  std::vector<std::pair<ChunkId, Iteration>> atWindow_, atRelease_;
  struct Ahead {
    int64_t bytes = 0;  // Of sums that have begun here and are not back.
    std::deque<std::pair<ChunkId, Iteration>> waiting;
  };
  std::map<Priority, Ahead> ahead_;
  struct PendingGet {
    int ticket;
    std::byte* memory;
  };
  using GetKey = std::tuple<ChunkId, uint8_t, uint8_t>;  // chunk, slot, tag
  std::map<GetKey, PendingGet> gets_;
  struct Unborn {
    Node peer;
    int lane;
    Header header;
    Buffer payload;
  };
  size_t unbornBytes_ = 0;
  std::vector<Unborn> unborn_;  // Gradients for chunks that our caller has not come to yet.
  std::vector<Event> events_;
  int inUse_ = 0;         // Directions of links that are sending or receiving.
  int64_t useSince_ = 0;  // What came before is counted.
  std::atomic<int64_t> busyNs_{0};
  int64_t lastTurn_ = 0;
  Flight flight_;
  int64_t roundTrip_ = 0, roundTripSeen_ = 0;
  uint64_t writes_ = 0;
  int64_t lastTurnTaken_ = 0;
  int64_t looked_ = 0;    // When kernels were last asked what is on its way.
  bool failed_ = false;   // No step runs any more; what still arrives is thrown away.
  bool aborted_ = false;  // The others have been told.
};

}  // namespace dovetail
