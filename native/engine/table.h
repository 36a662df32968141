// What a job moves and what this node does with it: plain data, fixed before the job starts.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace dovetail {

enum class Op : uint8_t { Fetch = 0, Add, Send, Copy, Finish, Gate, Deliver, Ask, Offer };

struct Step {
  Op op;
  std::vector<Node> peers;
};
using Program = std::vector<Step>;

struct TensorSpec {
  int64_t nbytes;
  DType type;
  int32_t group;    // Whose hyperparameters it follows.
  int32_t divisor;  // The sum is divided by this.
};

struct ChunkSpec {
  int32_t tensor;
  int64_t offset;
  int64_t nbytes;
  int32_t program;  // -1: not this node's business.
  int32_t lane;
  Priority push;
  Priority pull;
  int32_t transfer;    // It may leave when all tensors of this transfer are submitted.
  int32_t pullWindow;  // 0: ask at once; 1: after the backward pass.
};

struct Table {
  std::vector<Program> programs;
  std::vector<TensorSpec> tensors;
  std::vector<ChunkSpec> chunks;
  std::vector<std::vector<int32_t>> transfers;  // Tensors of each.
  std::vector<int32_t> windows;                 // 0: at once; 1: after the backward pass.
};

}  // namespace dovetail
