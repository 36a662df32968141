// One thread that waits for sockets, tasks and time. Everything it calls runs in turns, one after another: on
// that thread, or on one that helps because it would only wait otherwise.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <condition_variable>
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
  virtual void onEvents(uint32_t events) = 0;  // In a turn.
};

// Called once after each batch of events, and at least every `kTick`.
class TurnListener {
 public:
  virtual ~TurnListener() = default;
  virtual void onTurn(int64_t now) = 0;  // In a turn.
  virtual bool idle() const = 0;         // Likewise: nothing of this node's is under way.
};

class Loop {
 public:
  explicit Loop(double rate);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void post(std::function<void()> task);        // Any thread.
  void runAndWait(std::function<void()> task);  // Any thread outside of a turn; returns when it has run.
  void postAndHelp(
      std::function<void()> task);  // Likewise; takes a turn itself unless another thread has one.
  // Take turns until `done` or that late, if the loop's own thread rests; else false, and it will rest soon.
  bool drive(const std::function<bool()>& done, int64_t until);

  void watch(int fd, Watcher* watcher, uint32_t events);  // In a turn only, like all below.
  void rewatch(int fd, Watcher* watcher, uint32_t events);
  void unwatch(int fd, Watcher* watcher);
  void addTurnListener(TurnListener* listener);
  void removeTurnListener(TurnListener* listener);
  void wakeAt(int64_t when);  // Run a turn at that time at the latest.
  Throttle& throttle() { return throttle_; }

 private:
  void run();
  void takeTurn(int64_t latest);
  // Without a way out half done: nobody could take up the rest.
  void runTurn(const epoll_event* events, int count) noexcept;
  void runTasks();
  void rest();
  bool add(std::function<void()> task);  // Whether nobody has been told of tasks yet.
  void wake();
  int await(epoll_event* events, int most, int64_t latest) const;  // How many came; -1 where a signal did.

  int epoll_;
  int wakeFd_;
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;  // Guarded by mutex_, like the next two.
  bool resting_ = false;                      // The loop's own thread does.
  bool driven_ = false;                       // By a caller.
  std::condition_variable rested_;
  std::atomic<int64_t> lastDrive_{0};  // When a caller last wanted to, or did.
  std::atomic<bool> stopping_{false};
  std::mutex turn_;                       // Held during a turn.
  std::atomic<uint64_t> ended_{0};        // Watches that have. Read before a turn, too.
  std::atomic<int64_t> wakeAt_{0};        // 0 = no wish. Likewise.
  std::atomic<bool> idle_{false};         // Nothing was under way after the last turn. Likewise.
  std::vector<TurnListener*> listeners_;  // In a turn only, like all below.
  std::vector<Watcher*> unwatched_;       // Dropped within this batch of events.
  Throttle throttle_;
  std::thread thread_;  // Last, so that all above exists when it starts.
};

}  // namespace dovetail
