// Memory for sums and masters: aligned for vector loads, never initialised twice.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

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
  size_t capacity() const { return capacity_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  size_t capacity_ = 0;
};

// Buffers between two uses, by size, the last one given back first: it is still in the cache.
class BufferPool {
 public:
  // Makes room for so many bytes unless it is there.
  void fill(Buffer& buffer, size_t wanted) {
    if (wanted <= buffer.capacity()) return;
    give(buffer);
    const size_t nbytes = std::max(wanted, kLeast);
    auto& idle = idle_[static_cast<size_t>(std::bit_width(nbytes - 1))];
    if (idle.empty()) return buffer.reserve(std::bit_ceil(nbytes));
    buffer = std::move(idle.back());
    idle.pop_back();
  }
  void give(Buffer& buffer) {
    if (buffer.capacity() == 0) return;
    // Rounded down: a buffer serves all that asks for no more than it has.
    idle_[static_cast<size_t>(std::bit_width(buffer.capacity()) - 1)].push_back(
        std::exchange(buffer, Buffer()));
  }

 private:
  static constexpr size_t kLeast = 64;  // What a Buffer rounds to.

  std::array<std::vector<Buffer>, 64> idle_;  // By the power of two that they hold.
};

}  // namespace dovetail
