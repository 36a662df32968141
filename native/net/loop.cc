#include "net/loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <utility>

#include "base/clock.h"

namespace dovetail {

namespace {
constexpr int64_t kTick = kSecond / 5;
// How long the loop's thread rests after the last caller that drove: what a peer's frame may have to wait for
// us.
constexpr int64_t kRest = kSecond / 1000;

// A caller may have asked its processor for other arithmetic (torch.set_flush_denormal); sums are the same on
// every thread.
class PlainNumbers {
 public:
  PlainNumbers() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~PlainNumbers() { std::fesetenv(&callers_); }
  PlainNumbers(const PlainNumbers&) = delete;
  PlainNumbers& operator=(const PlainNumbers&) = delete;

 private:
  std::fenv_t callers_;
};
}  // namespace

Loop::Loop(double rate)
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), wakeFd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), throttle_(rate) {
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  epoll_ctl(epoll_, EPOLL_CTL_ADD, wakeFd_, &event);
  thread_ = std::thread([this] { run(); });
}

Loop::~Loop() {
  stopping_ = true;
  post([] {});
  thread_.join();
  close(wakeFd_);
  close(epoll_);
}

bool Loop::add(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  return tasks_.size() == 1;
}

void Loop::wake() {
  const uint64_t one = 1;
  (void)!write(wakeFd_, &one, sizeof one);
  rested_.notify_one();
}

void Loop::post(std::function<void()> task) {
  if (add(std::move(task))) wake();
}

void Loop::postAndHelp(std::function<void()> task) {
  const bool first = add(std::move(task));
  const std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn.owns_lock()) {
    if (first) wake();
    return;
  }
  const PlainNumbers plain;
  std::array<epoll_event, 64> events{};
  // What has arrived comes first: a turn that does not listen could take a peer for silent.
  runTurn(events.data(), epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 0));
  if (wakeAt_ != 0) wake();  // The loop's thread sleeps, and does not know of that wish.
}

bool Loop::drive(const std::function<bool()>& done, int64_t until) {
  lastDrive_ = nowNs();
  {
    std::lock_guard lock(mutex_);
    if (!resting_ || driven_) return false;
    driven_ = true;
  }
  const PlainNumbers plain;
  while (!done() && nowNs() < until) takeTurn(until);
  lastDrive_ = idle_ ? nowNs() : 0;
  std::lock_guard lock(mutex_);
  driven_ = false;
  if (!idle_ || !tasks_.empty()) rested_.notify_one();
  return true;
}

void Loop::rest() {
  if (nowNs() - lastDrive_ > kRest) return;
  std::unique_lock lock(mutex_);
  // Looked at under the lock: a caller whose turn began something finds us awake, or drives.
  if (!idle_) return;
  resting_ = true;
  while (driven_ || (idle_ && tasks_.empty() && !stopping_)) {
    const int64_t left = lastDrive_ + kRest - nowNs();
    if (!driven_ && left <= 0) break;
    rested_.wait_for(lock, std::chrono::nanoseconds(driven_ ? kRest : left));
  }
  resting_ = false;
}

void Loop::runAndWait(std::function<void()> task) {
  std::mutex mutex;
  std::condition_variable done;
  bool finished = false;
  post([&] {
    task();
    // Notify under the lock: the waiter owns these objects and may destroy them once it sees `finished`.
    std::lock_guard lock(mutex);
    finished = true;
    done.notify_one();
  });
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return finished; });
}

void Loop::watch(int fd, Watcher* watcher, uint32_t events) {
  epoll_event event{.events = events, .data = {.ptr = watcher}};
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

void Loop::rewatch(int fd, Watcher* watcher, uint32_t events) {
  epoll_event event{.events = events, .data = {.ptr = watcher}};
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
}

void Loop::unwatch(int fd, Watcher* watcher) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  unwatched_.push_back(watcher);
  ++ended_;
}

void Loop::addTurnListener(TurnListener* listener) {
  listeners_.push_back(listener);
}

void Loop::removeTurnListener(TurnListener* listener) {
  std::erase(listeners_, listener);
}

void Loop::wakeAt(int64_t when) {
  const int64_t wish = wakeAt_;
  wakeAt_ = wish == 0 ? when : std::min(wish, when);
}

int Loop::await(epoll_event* events, int most, int64_t latest) const {
  const int64_t wish = wakeAt_;
  const int64_t until =
      std::clamp<int64_t>((wish == 0 ? latest : std::min(wish, latest)) - nowNs(), 0, kTick);
  const timespec patience{.tv_sec = until / kSecond, .tv_nsec = until % kSecond};
  const int count = epoll_pwait2(epoll_, events, most, &patience, nullptr);
  if (count >= 0 || errno == EINTR) return count;
  return epoll_wait(epoll_, events, most,
                    static_cast<int>((until + 999'999) / 1'000'000));  // Before Linux 5.11, or not allowed.
}

void Loop::runTasks() {
  std::vector<std::function<void()>> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (auto& task : tasks) task();
}

void Loop::takeTurn(int64_t latest) {
  std::array<epoll_event, 64> events{};
  const auto most = static_cast<int>(events.size());
  const uint64_t ended = ended_;
  int count = await(events.data(), most, latest);
  const std::lock_guard turn(turn_);
  // Meanwhile another thread may have dropped what these events are about.
  if (ended_ != ended) count = epoll_wait(epoll_, events.data(), most, 0);
  runTurn(events.data(), count);
}

void Loop::runTurn(const epoll_event* events, int count) noexcept {
  wakeAt_ = 0;
  unwatched_.clear();
  for (int i = 0; i < count; ++i) {
    auto* watcher = static_cast<Watcher*>(events[i].data.ptr);
    if (watcher == nullptr) {
      uint64_t drained;
      (void)!read(wakeFd_, &drained, sizeof drained);
    } else if (std::find(unwatched_.begin(), unwatched_.end(), watcher) == unwatched_.end()) {
      watcher->onEvents(events[i].events);
    }
  }
  runTasks();
  const int64_t now = nowNs();
  // By index and on a copy: a listener may remove itself.
  const auto listeners = listeners_;
  for (auto* listener : listeners) listener->onTurn(now);
  idle_ =
      wakeAt_ == 0 && std::all_of(listeners_.begin(), listeners_.end(), [](auto* l) { return l->idle(); });
}

void Loop::run() {
  pthread_setname_np(pthread_self(), "dovetail");
  // Signals belong to Python's main thread.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  while (!stopping_) {
    takeTurn(nowNs() + kTick);
    rest();
  }
  runTasks();
}

}  // namespace dovetail
