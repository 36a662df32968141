#include "net/loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <utility>

#include "base/clock.h"

namespace dovetail {

namespace {
constexpr int64_t kTick = kSecond / 5;
}

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

void Loop::post(std::function<void()> task) {
  bool first = false;
  {
    std::lock_guard lock(mutex_);
    first = tasks_.empty();
    tasks_.push_back(std::move(task));
  }
  if (first) {
    const uint64_t one = 1;
    (void)!write(wakeFd_, &one, sizeof one);
  }
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
}

void Loop::addTurnListener(TurnListener* listener) {
  listeners_.push_back(listener);
}

void Loop::removeTurnListener(TurnListener* listener) {
  std::erase(listeners_, listener);
}

void Loop::wakeAt(int64_t when) {
  wakeAt_ = wakeAt_ == 0 ? when : std::min(wakeAt_, when);
}

int Loop::await(epoll_event* events, int most) const {
  const int64_t until = wakeAt_ == 0 ? kTick : std::clamp<int64_t>(wakeAt_ - nowNs(), 0, kTick);
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

void Loop::run() {
  pthread_setname_np(pthread_self(), "dovetail");
  // Signals belong to Python's main thread.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::array<epoll_event, 64> events{};
  while (!stopping_) {
    const int count = await(events.data(), static_cast<int>(events.size()));
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
  }
  runTasks();
}

}  // namespace dovetail
