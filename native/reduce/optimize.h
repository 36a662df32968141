// Optimizer updates at the aggregator, in torch's formulas and torch's order of operations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace dovetail {

enum class Rule : uint8_t { Mean = 0, Sgd = 1, Adam = 2, AdamW = 3 };

constexpr uint32_t kNesterov = 1;
constexpr uint32_t kMaximize = 2;

struct Hyper {
  double lr = 0, momentum = 0, dampening = 0, weightDecay = 0, beta1 = 0, beta2 = 0, eps = 0;
  bool operator==(const Hyper&) const = default;
};

// State tensors the rule keeps beside the value.
constexpr int stateSlots(Rule rule) {
  return rule == Rule::Mean ? 0 : rule == Rule::Sgd ? 1 : 2;
}

struct Update {
  Rule rule;
  uint32_t flags;
  Hyper hyper;
  uint32_t step;       // 1 for the first update of this value.
  double factor;       // Gradient = sum * factor.
  bool firstMomentum;  // SGD: no momentum yet, the gradient becomes it.
};

// F32 and F64 only. `first` and `second` are the state slots 1 and 2.
void applyUpdate(DType type, const Update& update, const std::byte* sum, std::byte* value, std::byte* first,
                 std::byte* second, size_t count);

}  // namespace dovetail
