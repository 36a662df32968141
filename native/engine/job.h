// One job on one node, as its caller sees it: submit, wait, release. Work happens in shards, one a
// loop thread; this class is what they share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "engine/squares.h"
#include "engine/table.h"
#include "net/loop.h"
#include "net/socket.h"
#include "reduce/optimize.h"

namespace dovetail {

class Shard;

struct JobOptions {
  std::string name;
  Node node = 0;
  std::vector<std::string> labels;  // One a node, for messages.
  int contributors = 1;             // The mean is over this many.
  bool deterministic = false;       // Add in rank order, whatever the order of arrival.
  double timeoutSeconds = 0;        // A peer silent for longer is lost; 0 = never.
  int credit = 0;                   // Bytes a link may have waiting in the kernel.
  bool trace = false;
};

struct Failure {
  Node peer;
  std::string reason;
  Iteration step;
};

struct Event {
  uint8_t kind;  // 0 send, 1 receive, 2 update
  int32_t tensor;
  uint32_t chunk;
  Node peer;
  Iteration iteration;
  int64_t start, end;  // CLOCK_MONOTONIC nanoseconds
  int64_t nbytes;
  Priority priority;
};

struct Counters {
  std::atomic<uint64_t> bytesSent{0}, bytesReceived{0}, framesSent{0}, framesReceived{0}, chunksSummed{0},
      updates{0};
};

enum class Waited { Done, TimedOut, Failed };
enum class Got { TimedOut = 0, Value = 1, Absent = 2 };

struct Path {
  Node peer;
  int lane;
  PathInfo info;
};

class Job {
 public:
  Job(std::vector<Loop*> loops, JobOptions options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Before start, one thread.
  void setTable(Table table);
  void setRule(Rule rule, uint32_t flags);
  void addLink(Node peer, int lane, int fd);  // Owns fd. After start only for guests.
  void start();

  // After start: tensors, programs, transfers and chunks that follow the ones there are. Frames for them that
  // came before are kept until now. Blocks for a moment.
  void extendTable(Table more);

  // Between iterations, when every node has all results of the last: chunk c follows programs[c] from now on;
  // `more` programs follow the ones there are. Nobody may send before all nodes have done it. Blocks for a
  // moment.
  void reroute(std::vector<Program> more, const std::vector<int32_t>& programs);

  // These tensors are complete here and will never be submitted again, by anybody: their chunks' memory is
  // freed as soon as all is sent. Any thread.
  void retire(const std::vector<int>& tensors);

  // Any thread; none of them blocks unless it says so.
  void bind(int tensor, std::byte* memory);
  void put(int tensor, int slot, const std::byte* memory, uint32_t step);
  int get(int tensor, int slot, std::byte* memory, Iteration version);
  Got waitGet(int ticket, double seconds);  // Blocks.
  void cancelGet(int ticket);               // Its memory is the caller's again; blocks for a moment.
  uint32_t getStep(int tensor) const;
  void hyper(Iteration iteration, int group, const Hyper& values);
  // Null = absent. `more`: others follow soon and backwardDone after them, so a small one may wait for them.
  void submit(int tensor, Iteration iteration, const std::byte* memory, bool more = false);
  void backwardDone(Iteration iteration);
  void release(Iteration iteration);
  Waited wait(const std::vector<int>& tensors, Iteration iteration, double seconds);  // Blocks.
  // Blocks until there is more news than `seen`: tensors that were completed since the start, and nudges. How
  // much there is; failed where no more will come.
  std::pair<Waited, uint64_t> waitNews(uint64_t seen, double seconds);
  void nudge();
  void watchSquares(Iteration iteration);  // Before its first submit.
  // Blocks. The sum of squares of what this node completes in a watched iteration; the rest is others' to
  // say.
  std::pair<Waited, double> waitSquares(Iteration iteration, double seconds);
  Iteration completed(int tensor) const;
  bool absent(int tensor) const;
  std::optional<Failure> failure() const;
  void fail(Node peer, const std::string& reason);
  std::vector<Event> events();
  std::vector<Path> paths();                      // Blocks for a moment.
  std::map<Priority, uint64_t> sentByPriority();  // Likewise. Payload bytes.
  int64_t busyNs() const;  // Links were in use for so long; of several loop threads, the busiest one's.
  int64_t bytesOf(int tensor) const;  // 0 where there is none.
  int contributors() const { return options_.contributors; }
  const Counters& counters() const { return counters_; }
  void close();  // Blocks until goodbyes are said, 2 s at most; idempotent.

 private:
  friend class Shard;

  struct TensorState {
    std::byte* bound = nullptr;                // Guarded by mutex_ until start, then written before use.
    std::byte* local[2] = {nullptr, nullptr};  // Set before the shards are told.
    bool gone[2] = {false, false};             // Absent here this iteration.
    std::atomic<int> left[2] = {0, 0};         // Chunks not yet complete.
    std::atomic<bool> present[2] = {false, false};
    std::atomic<Iteration> completed{0};
    std::atomic<bool> wasAbsent{false};
    std::atomic<uint32_t> step{0};
    int chunks = 0;
  };
  struct Due {
    int transfer;
    Iteration iteration;
  };
  struct Ticket {
    int chunksLeft = 0;
    bool absent = false;
  };

  void failAt(Node peer, const std::string& reason, Iteration step);
  bool isRoot(const ChunkSpec& chunk) const;
  void chunkSquared(ChunkId chunk, Iteration iteration, double square);  // Shards.
  void tellWaiters();
  void chunkComplete(int tensor, Iteration iteration, bool present);  // Shards.
  void gotChunk(int ticket, bool absent, uint32_t step, int tensor);  // Shards.
  bool sendLingering(
      bool help);  // Whether there was something. `help`: on this thread, which is to wait anyway.
  void sendTransfers(std::vector<Due> transfers, bool help);
  void append(Table more);
  void noteGates(const std::vector<Program>& programs);
  void withLoopsParked(const std::function<void()>& task);
  void requireTensor(int tensor, const char* what) const;
  // Jobs of one lane each are spread over the threads, too.
  Shard& shardOf(int lane) { return *shards_[(static_cast<size_t>(lane) + firstLoop_) % shards_.size()]; }
  bool mayGrow() const { return options_.node < options_.contributors; }  // A hub's table is fixed.

  const std::vector<Loop*> loops_;
  const JobOptions options_;
  Table table_;  // Grows only while all loops are parked.
  Rule rule_ = Rule::Mean;
  uint32_t flags_ = 0;
  std::vector<std::unique_ptr<Shard>> shards_;  // One a loop; constant after construction.
  std::deque<TensorState> tensors_;             // Likewise, and under mutex_; entries never move.
  std::vector<std::vector<int>> transfersOf_;   // Tensor -> transfers.
  std::vector<int> missing_;                    // Transfer -> tensors not submitted. Guarded by submitMutex_.
  std::vector<Due> held_;                       // Ready, but the window is closed. Guarded by submitMutex_.
  std::vector<int64_t> sizes_;                  // Transfer -> bytes of its chunks here.
  std::vector<Due> lingering_;  // Ready and small: they wait for company. Guarded by submitMutex_.
  int64_t lingeringBytes_ = 0;  // Guarded by submitMutex_.
  int64_t lingeringSince_ = 0;  // Guarded by submitMutex_.
  std::mutex submitMutex_;
  std::atomic<Iteration> current_{0};
  std::atomic<Iteration> backwardDone_{0};
  std::atomic<Iteration> released_{0};
  Squares squares_[2];
  size_t planned_ = 0;  // Chunks that were there at the start; the others are of collectives.
  const size_t firstLoop_;
  std::atomic<size_t> tensorCount_{0};
  std::atomic<bool> gated_{false};  // Some step waits for the end of the backward pass.
  bool started_ = false;
  std::atomic<bool> closed_{false};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> waiters_{0};
  std::atomic<uint64_t> news_{0};
  size_t settled_ = 0;  // Shards that have let go of the caller's memory after a failure. Guarded by mutex_.
  std::optional<Failure> failure_;  // Guarded by mutex_.
  std::map<int, Ticket> tickets_;   // Guarded by mutex_.
  int nextTicket_ = 1;              // Guarded by mutex_.
  std::vector<Event> events_;       // Guarded by mutex_.
  Counters counters_;
};

}  // namespace dovetail
