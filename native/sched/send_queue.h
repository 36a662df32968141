// What waits to be sent on one link: an earlier iteration first, then the most urgent, equals in the order
// they came. Iterations come first because a rank that is behind holds up all others, however urgent their
// next gradients are.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "base/types.h"
#include "wire/frame.h"

namespace dovetail {

constexpr Iteration kAtOnce = 0;  // Ahead of every iteration.

struct Outgoing {
  Iteration due;
  Priority priority;
  uint64_t order;  // Given by the queue.
  Header header;
  const std::byte* payload = nullptr;  // Null where the owner fills it in just before it leaves.
};

class SendQueue {  // In a turn of its loop only.
 public:
  void push(Iteration due, Priority priority, const Header& header, const std::byte* payload) {
    heap_.push({due, priority, next_++, header, payload});
  }
  Outgoing pop() {  // Not empty.
    Outgoing item = heap_.top();
    heap_.pop();
    return item;
  }
  const Outgoing* head() const { return heap_.empty() ? nullptr : &heap_.top(); }
  bool empty() const { return heap_.empty(); }
  void clear() { heap_ = {}; }

 private:
  struct Later {
    bool operator()(const Outgoing& a, const Outgoing& b) const {
      if (a.due != b.due) return a.due > b.due;
      return a.priority != b.priority ? a.priority > b.priority : a.order > b.order;
    }
  };
  std::priority_queue<Outgoing, std::vector<Outgoing>, Later> heap_;
  uint64_t next_ = 0;
};

}  // namespace dovetail
