#include "engine/job.h"

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "base/clock.h"
#include "engine/shard.h"

namespace dovetail {

namespace {
constexpr auto kGoodbye = std::chrono::seconds(2);  // Without a byte leaving.
constexpr size_t kLongestReason = 1000;
constexpr int64_t kSmall = 16 * 1024,
                  kEnough = 32 * 1024;  // Bytes: of a gradient that lingers, of all of them.
constexpr int64_t kLinger = kSecond / 100;
}  // namespace

Job::Job(std::vector<Loop*> loops, JobOptions options)
    : loops_(std::move(loops)),
      options_(std::move(options)),
      firstLoop_(std::hash<std::string>()(options_.name)) {
  for (Loop* loop : loops_) shards_.push_back(std::make_unique<Shard>(*this, *loop));
}

Job::~Job() {
  close();
  // A failure found while closing may still have told the shards; nothing may reach them once they are gone.
  for (auto& shard : shards_) shard->loop().runAndWait([] {});
}

void Job::setRule(Rule rule, uint32_t flags) {
  rule_ = rule;
  flags_ = flags;
}

void Job::addLink(Node peer, int lane, int fd) {
  Shard& shard = shardOf(lane);
  shard.loop().runAndWait([&] { shard.addLink(peer, lane, fd); });
}

void Job::start() {
  for (const TensorSpec& tensor : table_.tensors) {
    if (rule_ != Rule::Mean && tensor.type != DType::F32 && tensor.type != DType::F64) {
      throw std::invalid_argument("updates at the aggregator need 32- or 64-bit values");
    }
  }
  started_ = true;
  for (auto& shard : shards_) shard->loop().runAndWait([&] { shard->start(); });
}

void Job::requireTensor(int tensor, const char* what) const {
  if (tensor < 0 || static_cast<size_t>(tensor) >= tensorCount_) {
    throw std::out_of_range(std::string(what) + ": there is no tensor " + std::to_string(tensor));
  }
}

int64_t Job::bytesOf(int tensor) const {
  const auto index = static_cast<size_t>(tensor);
  return tensor < 0 || index >= tensorCount_ ? 0 : table_.tensors[index].nbytes;
}

void Job::bind(int tensor, std::byte* memory) {
  requireTensor(tensor, "bind");
  tensors_[static_cast<size_t>(tensor)].bound = memory;
}

void Job::put(int tensor, int slot, const std::byte* memory, uint32_t step) {
  requireTensor(tensor, "put");
  const auto nbytes = static_cast<size_t>(table_.tensors[static_cast<size_t>(tensor)].nbytes);
  auto values = std::make_shared<std::vector<std::byte>>(memory, memory + nbytes);
  for (auto& shard : shards_) {
    shard->loop().post([&s = *shard, tensor, slot, values, step] { s.put(tensor, slot, values, step); });
  }
}

int Job::get(int tensor, int slot, std::byte* memory, Iteration version) {
  requireTensor(tensor, "get");
  int ticket = 0;
  {
    std::lock_guard lock(mutex_);
    ticket = nextTicket_++;
    tickets_[ticket] = {tensors_[static_cast<size_t>(tensor)].chunks, false};
  }
  for (auto& shard : shards_) {
    shard->loop().post([&s = *shard, ticket, tensor, slot, memory, version] {
      s.get(ticket, tensor, slot, memory, version);
    });
  }
  return ticket;
}

void Job::gotChunk(int ticket, bool absent, uint32_t step, int tensor) {
  tensors_[static_cast<size_t>(tensor)].step = step;
  std::lock_guard lock(mutex_);
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return;
  found->second.absent |= absent;
  if (--found->second.chunksLeft == 0) changed_.notify_all();
}

Got Job::waitGet(int ticket, double seconds) {
  std::unique_lock lock(mutex_);
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end())
    throw std::out_of_range("wait_get: there is no ticket " + std::to_string(ticket));
  changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [&] { return settled_ == shards_.size() || found->second.chunksLeft == 0; });
  if (found->second.chunksLeft > 0) return Got::TimedOut;
  const bool absent = found->second.absent;
  tickets_.erase(found);
  return absent ? Got::Absent : Got::Value;
}

void Job::cancelGet(int ticket) {
  for (auto& shard : shards_) shard->loop().runAndWait([&] { shard->cancelGet(ticket); });
  std::lock_guard lock(mutex_);
  tickets_.erase(ticket);
}

uint32_t Job::getStep(int tensor) const {
  requireTensor(tensor, "get_step");
  return tensors_[static_cast<size_t>(tensor)].step;
}

void Job::hyper(Iteration iteration, int group, const Hyper& values) {
  for (auto& shard : shards_) {
    shard->loop().post([&s = *shard, iteration, group, values] { s.sendHyper(iteration, group, values); });
  }
}

void Job::submit(int tensor, Iteration iteration, const std::byte* memory, bool more) {
  requireTensor(tensor, "submit");
  TensorState& state = tensors_[static_cast<size_t>(tensor)];
  if (state.completed + 1 != iteration) {
    throw std::logic_error("tensor " + std::to_string(tensor) + " is submitted for iteration " +
                           std::to_string(iteration) + " but has completed " +
                           std::to_string(state.completed));
  }
  current_ = iteration;
  state.local[iteration % 2] = const_cast<std::byte*>(memory);
  state.gone[iteration % 2] = memory == nullptr;
  std::vector<Due> ready;
  bool enough = false;
  {
    std::lock_guard lock(submitMutex_);
    for (const int transfer : transfersOf_[static_cast<size_t>(tensor)]) {
      int& missing = missing_[static_cast<size_t>(transfer)];
      if (--missing > 0) continue;
      missing = static_cast<int>(table_.transfers[static_cast<size_t>(transfer)].size());
      if (table_.windows[static_cast<size_t>(transfer)] != 0 && backwardDone_ < iteration) {
        held_.push_back({transfer, iteration});
      } else if (more && sizes_[static_cast<size_t>(transfer)] < kSmall) {
        // Waking the loop for each of many small ones would cost more than sending them.
        if (lingering_.empty()) lingeringSince_ = nowNs();
        lingering_.push_back({transfer, iteration});
        lingeringBytes_ += sizes_[static_cast<size_t>(transfer)];
      } else {
        ready.push_back({transfer, iteration});
      }
    }
    enough = lingeringBytes_ >= kEnough || (!lingering_.empty() && nowNs() - lingeringSince_ > kLinger);
  }
  if (!ready.empty()) sendTransfers(std::move(ready), /*help=*/false);
  if (enough) sendLingering(/*help=*/false);
  if (state.chunks == 0) state.completed = iteration;  // Nothing of an empty tensor travels.
}

bool Job::sendLingering(bool help) {
  std::vector<Due> ready;
  {
    std::lock_guard lock(submitMutex_);
    ready.swap(lingering_);
    lingeringBytes_ = 0;
  }
  if (ready.empty()) return false;
  sendTransfers(std::move(ready), help);
  return true;
}

void Job::sendTransfers(std::vector<Due> transfers, bool help) {
  for (auto& shard : shards_) {
    auto task = [&s = *shard, transfers] {
      for (const Due& due : transfers) s.fetch(due.transfer, due.iteration);
    };
    if (help) {
      shard->loop().postAndHelp(std::move(task));
    } else {
      shard->loop().post(std::move(task));
    }
  }
}

void Job::backwardDone(Iteration iteration) {
  std::vector<Due> ready;
  {
    std::lock_guard lock(submitMutex_);
    backwardDone_ = iteration;
    ready.swap(held_);
  }
  sendLingering(/*help=*/false);
  if (!ready.empty()) sendTransfers(std::move(ready), /*help=*/false);
  if (!gated_) return;  // Nobody to wake.
  for (auto& shard : shards_) shard->loop().post([&s = *shard] { s.openWindows(); });
}

void Job::release(Iteration iteration) {
  released_ = iteration;
  if (rule_ == Rule::Mean) return;  // Results go to the memory they came from; nothing waits.
  for (auto& shard : shards_) shard->loop().post([&s = *shard] { s.openReleases(); });
}

void Job::chunkComplete(int tensor, Iteration iteration, bool present) {
  TensorState& state = tensors_[static_cast<size_t>(tensor)];
  const size_t parity = iteration % 2;
  if (present) state.present[parity] = true;
  if (--state.left[parity] > 0) return;
  state.left[parity] = state.chunks;
  state.wasAbsent = !state.present[parity].exchange(false);
  state.completed = iteration;
  ++news_;
  tellWaiters();
}

void Job::tellWaiters() {
  if (waiters_ == 0) return;
  {
    std::lock_guard lock(mutex_);
  }  // Whoever waits is asleep by now, or sees it; it is to wake to an open lock.
  changed_.notify_all();
}

void Job::nudge() {
  ++news_;
  tellWaiters();
}

std::pair<Waited, uint64_t> Job::waitNews(uint64_t seen, double seconds) {
  ++waiters_;
  std::unique_lock lock(mutex_);
  const bool over = changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                                      [&] { return news_ > seen || settled_ == shards_.size() || closed_; });
  --waiters_;
  const uint64_t found = news_;
  if (found > seen) return {Waited::Done, found};
  return {over ? Waited::Failed : Waited::TimedOut, found};
}

Waited Job::wait(const std::vector<int>& tensors, Iteration iteration, double seconds) {
  for (const int tensor : tensors) requireTensor(tensor, "wait");
  const auto done = [&] {
    for (const int tensor : tensors) {
      if (tensors_[static_cast<size_t>(tensor)].completed < iteration) return false;
    }
    return true;
  };
  bool finished = false;
  const auto over = [&] {  // Under mutex_.
    finished = done();
    return finished || settled_ == shards_.size();
  };
  const int64_t until = nowNs() + static_cast<int64_t>(seconds * kSecond);
  // What is little and waited for at once is cheapest on the thread that waits.
  if (sendLingering(/*help=*/true) && shards_.size() == 1) {
    const auto ended = [&] {
      std::lock_guard lock(mutex_);
      return over();
    };
    shards_[0]->loop().drive(ended, until);
  }
  ++waiters_;
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(until)), over);
  --waiters_;
  if (finished) return Waited::Done;
  return settled_ == shards_.size() ? Waited::Failed : Waited::TimedOut;
}

Iteration Job::completed(int tensor) const {
  requireTensor(tensor, "completed");
  std::lock_guard lock(mutex_);  // The table may be growing.
  return tensors_[static_cast<size_t>(tensor)].completed;
}

bool Job::absent(int tensor) const {
  requireTensor(tensor, "absent");
  std::lock_guard lock(mutex_);
  return tensors_[static_cast<size_t>(tensor)].wasAbsent;
}

std::optional<Failure> Job::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void Job::fail(Node peer, const std::string& reason) {
  failAt(peer, reason, current_);
}

void Job::failAt(Node peer, const std::string& reason, Iteration step) {
  const Failure failure{peer, reason.substr(0, kLongestReason), step};
  {
    std::lock_guard lock(mutex_);
    if (failure_.has_value()) return;
    failure_ = failure;
  }
  for (auto& shard : shards_) {
    shard->loop().post([this, &s = *shard, failure] {
      s.abort(failure);
      // Only now may a waiting caller hear of it and take its memory back.
      std::lock_guard lock(mutex_);
      if (++settled_ == shards_.size()) changed_.notify_all();
    });
  }
}

std::vector<Event> Job::events() {
  std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

std::vector<Path> Job::paths() {
  std::vector<Path> result;
  for (auto& shard : shards_) {
    shard->loop().runAndWait([&] {
      const auto some = shard->paths();
      result.insert(result.end(), some.begin(), some.end());
    });
  }
  return result;
}

std::map<Priority, uint64_t> Job::sentByPriority() {
  std::map<Priority, uint64_t> result;
  for (auto& shard : shards_) shard->loop().runAndWait([&] { shard->addSent(result); });
  return result;
}

int64_t Job::busyNs() const {
  int64_t most = 0;
  for (const auto& shard : shards_) most = std::max(most, shard->busyNs());
  return most;
}

void Job::close() {
  if (closed_.exchange(true)) return;
  tellWaiters();
  const bool failed = failure().has_value();
  // As long as bytes leave, a peer still needs them, however slow the link is.
  auto progress = std::chrono::steady_clock::now();
  uint64_t sent = counters_.bytesSent;
  const auto awaitAll = [&](auto settled) {
    for (auto& shard : shards_) {
      for (bool done = false; !done;) {
        shard->loop().runAndWait([&] { done = settled(*shard); });
        const auto now = std::chrono::steady_clock::now();
        if (const uint64_t total = counters_.bytesSent; total != sent) {
          sent = total;
          progress = now;
        }
        if (done || now - progress > (failed ? kGoodbye / 4 : kGoodbye)) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  };
  if (started_) {
    if (!failed) {
      awaitAll([&](const Shard& shard) { return failure().has_value() || !shard.owes(); });
      for (auto& shard : shards_) shard->loop().runAndWait([&] { shard->sayBye(); });
    }
    awaitAll([](const Shard& shard) { return shard.drained(); });
  }
  for (auto& shard : shards_) shard->loop().runAndWait([&] { shard->stop(); });
}

}  // namespace dovetail
