// Vocabulary shared by every part of the engine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dovetail {

using Node = int32_t;  // Workers first, then dedicated hubs.
using ChunkId = uint32_t;
using Iteration = uint32_t;  // Counts 1, 2, 3, ...; 0 means none.
using Priority = int32_t;    // The smaller number goes first.

enum class DType : uint8_t { F32 = 0, F64 = 1, BF16 = 2, F16 = 3 };

constexpr size_t sizeOf(DType t) {
  return t == DType::F64 ? 8 : t == DType::F32 ? 4 : 2;
}

// 16-bit values are summed in 32 bits, so their sums take twice the room.
constexpr size_t sumSizeOf(DType t) {
  return t == DType::F64 ? 8 : 4;
}

}  // namespace dovetail
