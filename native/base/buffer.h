// Memory for sums and masters: aligned for vector loads, never initialised twice.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace dovetail {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t nbytes) { reserve(nbytes); }

  // Contents are undefined after growth.
  void reserve(size_t nbytes) {
    if (nbytes <= capacity_) return;
    const size_t rounded = (nbytes + 63) / 64 * 64;
    void* memory = std::aligned_alloc(64, rounded);
    if (memory == nullptr) throw std::bad_alloc();
    memory_.reset(static_cast<std::byte*>(memory));
    capacity_ = rounded;
  }

  std::byte* data() { return memory_.get(); }
  const std::byte* data() const { return memory_.get(); }
  bool empty() const { return capacity_ == 0; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  size_t capacity_ = 0;
};

}  // namespace dovetail
