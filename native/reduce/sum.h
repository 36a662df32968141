// Sums of gradients, chunk by chunk. 16-bit values are summed in 32 bits.
#pragma once

#include <cstddef>

#include "base/types.h"

namespace dovetail {

// `count` elements; `sum` holds sumSizeOf(type) bytes an element, `values` sizeOf(type).
void startSum(DType type, std::byte* sum, const std::byte* values, size_t count);
void addTo(DType type, std::byte* sum, const std::byte* values, size_t count);
// The sum times `factor`, in the wire's type; `out` may be `sum` itself for 32- and 64-bit types.
void finishSum(DType type, const std::byte* sum, std::byte* out, size_t count, double factor);
// The same of `ours + others` where ours lie, 32- and 64-bit types only; null = there are no others.
void finishAt(DType type, std::byte* ours, const std::byte* others, size_t count, double factor);
// In double precision, in an order that depends on `count` alone.
double sumOfSquares(DType type, const std::byte* values, size_t count);

}  // namespace dovetail
