// What travels on a link: a 16-byte header, then `length` bytes of payload. Little endian.
#pragma once

#include <bit>
#include <cstdint>

#include "base/types.h"

namespace dovetail {

static_assert(std::endian::native == std::endian::little, "frames are written as they lie in memory");

enum class Kind : uint8_t {
  Partial = 1,  // A gradient or a partial sum, towards the root.
  Result = 2,   // The mean gradient or the new value, away from the root.
  Ask = 3,      // Please send the result of this iteration.
  Put = 4,      // Set the root's copy (slot 0 value, 1.. optimizer state); iteration = its update count.
  Get = 5,      // Please send the root's copy once it has seen `iteration` updates.
  Value = 6,    // Answer to Get; iteration = its update count.
  Hyper = 7,    // Hyperparameters of one group (chunk = group) for one iteration.
  Beat = 8,     // Nothing to say, still here.
  Abort = 9,    // The job has failed: chunk = the culprit, iteration = its step, payload = the reason.
  Bye = 10,     // This node is done; nothing follows.
};

constexpr uint8_t kAbsent = 1;  // Flag: there is no gradient here this iteration; the payload is empty.

struct Header {
  uint32_t length = 0;
  uint32_t chunk = 0;
  uint32_t iteration = 0;
  Kind kind = Kind::Beat;
  uint8_t flags = 0;
  uint8_t slot = 0;
  uint8_t tag = 0;  // Get: chosen by the asker; Value: the same.
};
static_assert(sizeof(Header) == 16);

// Longer than any chunk can be: a larger length means that the bytes are not ours.
constexpr uint32_t kMaxPayload = 64u << 20;

}  // namespace dovetail
