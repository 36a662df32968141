// One thread that waits for sockets, tasks and time. Everything it calls runs on that thread.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "net/throttle.h"

namespace dovetail {

class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void onEvents(uint32_t events) = 0;  // Loop thread.
};

// Called once after each batch of events, and at least every `kTick`.
class TurnListener {
 public:
  virtual ~TurnListener() = default;
  virtual void onTurn(int64_t now) = 0;  // Loop thread.
};

class Loop {
 public:
  explicit Loop(double rate);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void post(std::function<void()> task);        // Any thread.
  void runAndWait(std::function<void()> task);  // Any thread but the loop's; returns when it has run.

  void watch(int fd, Watcher* watcher, uint32_t events);  // Loop thread only, like all below.
  void rewatch(int fd, Watcher* watcher, uint32_t events);
  void unwatch(int fd, Watcher* watcher);
  void addTurnListener(TurnListener* listener);
  void removeTurnListener(TurnListener* listener);
  void wakeAt(int64_t when);  // Run a turn at that time at the latest.
  Throttle& throttle() { return throttle_; }

 private:
  void run();
  void runTasks();
  int await(epoll_event* events, int most) const;  // How many came; -1 where a signal did.

  int epoll_;
  int wakeFd_;
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;  // Guarded by mutex_.
  std::atomic<bool> stopping_{false};
  std::vector<TurnListener*> listeners_;  // Loop thread only.
  std::vector<Watcher*> unwatched_;       // Loop thread only; watchers dropped within this batch of events.
  int64_t wakeAt_ = 0;                    // Loop thread only; 0 = no wish.
  Throttle throttle_;                     // Loop thread only.
  std::thread thread_;                    // Last, so that all above exists when it starts.
};

}  // namespace dovetail
