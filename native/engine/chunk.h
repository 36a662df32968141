// The life of one chunk on one node: where it is in its program, and the memory it uses meanwhile.
#pragma once

#include <vector>

#include "base/buffer.h"
#include "base/types.h"
#include "engine/table.h"

namespace dovetail {

enum class SumState : uint8_t { Empty, Filling, Ready };

struct Early {  // A contribution that could not be added when it came.
  Node from;
  Buffer values;
};

// One iteration of a chunk. Two exist a chunk, chosen by parity: a peer that already has this
// iteration's result may send the next one's gradient while slower peers are still served.
struct Slot {
  Iteration iteration = 0;  // 0: free.
  size_t pc = 0;            // Next step of the program.
  bool fetched = false;
  bool localPending = false;  // Our own gradient is still to be added.
  bool present = false;       // Some contribution was not absent.
  bool begun = false;         // Its sum began here, and is not back yet.
  bool resultHere = false;
  bool finishQueued = false;
  bool valueIsCallers = false;  // `value` points into the caller's memory.
  SumState sum = SumState::Empty;
  Node filling = -1;  // Who is being received straight into the sum.
  int sending = 0;    // Frames that still read from `value`.
  int offered = 0;    // Peers that have asked and been served.
  const std::byte* local = nullptr;
  const std::byte* value = nullptr;  // What a Send step sends.
  std::vector<Node> from;            // Who has contributed.
  std::vector<Node> askers;          // Who has asked and is not served yet.
  std::vector<Node> asked;           // Who has asked at all.
  std::vector<Early> early;
  Buffer buffer;  // The sum, or a result that waits for its release; the shard's when the slot is free.
  Buffer wire;    // A sum in the wire's 16 bits; likewise.

  void restart(Iteration it) {
    auto keepFrom = std::move(from);
    auto keepAskers = std::move(askers);
    keepFrom.clear();
    keepAskers.clear();
    *this = Slot{};
    from = std::move(keepFrom);
    askers = std::move(keepAskers);
    iteration = it;
  }
};

struct WaitingGet {
  Node peer;
  uint8_t slot;
  uint8_t tag;  // The asker's, returned with the answer.
  Iteration version;
};

struct Chunk {
  ChunkSpec spec;
  DType type;
  int32_t group = 0;
  size_t count = 0;     // Elements.
  double factor = 1.0;  // The result is the sum times this.
  bool planned = true;  // False: of a collective, which counts its own iterations.
  Slot slots[2];

  // At the root only: the value and the optimizer's state.
  Buffer master;
  Buffer state[2];
  bool hasMaster = false;
  bool hasState = false;
  uint32_t updates = 0;    // The optimizer's step count.
  Iteration finished = 0;  // The last iteration whose result exists.
  std::vector<WaitingGet> gets;

  uint64_t pushed = 0, pulled = 0;  // Payload bytes sent at either priority.

  Iteration due(Iteration iteration) const { return planned ? iteration : 1; }
};

}  // namespace dovetail
