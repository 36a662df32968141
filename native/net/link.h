// One connection to one peer: frames in, frames out. It asks its owner what to send next only when
// the kernel has room, so that what is urgent can still overtake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/buffer.h"
#include "base/types.h"
#include "net/loop.h"
#include "wire/frame.h"

namespace dovetail {

class Link;

struct OutFrame {
  Header header;
  const std::byte* payload = nullptr;  // Stays valid and unchanged until frameSent.
  Priority priority = 0;
  int64_t started = 0;
};

class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  virtual bool accepts(Link& link, const Header& header) = 0;  // False = it does not fit the job.
  virtual bool urgent(Link& link) = 0;       // What is next needs no credit and keeps to no rate limit.
  virtual size_t allowance(Link& link) = 0;  // Bytes it may write; 0 = the owner pumps it when it may.
  virtual void wrote(Link& link, size_t nbytes) = 0;
  virtual bool hasNext(Link& link) const = 0;
  virtual OutFrame nextFrame(Link& link) = 0;                         // There is one.
  virtual void frameSent(Link& link, const OutFrame& frame) = 0;      // The kernel has its last byte.
  virtual std::byte* placeFor(Link& link, const Header& header) = 0;  // Where the payload shall go.
  virtual void frameArrived(Link& link, const Header& header, int64_t started) = 0;
  virtual void linkLost(Link& link, const std::string& reason) = 0;  // Called once.
};

class Link : public Watcher {  // In a turn of its loop only.
 public:
  Link(Loop& loop, LinkOwner& owner, int fd, Node peer, int lane, int credit);
  ~Link() override;

  void start();
  void pump();   // Write while there is something to write and room in the kernel.
  void close();  // No more events; idempotent.
  // The caller's memory is no longer ours: what is half received goes to scratch, what is half sent is
  // copied.
  void leaveCallersMemory();
  void divert();  // The rest of the frame being received goes to scratch.

  const Header* receiving() const {
    return inHeader_ == sizeof(Header) && inPlace_ != nullptr ? &in_ : nullptr;
  }
  const Header* sending() const { return writing_ ? &out_.header : nullptr; }
  Node peer() const { return peer_; }
  int lane() const { return lane_; }
  int fd() const { return fd_; }
  bool closed() const { return closed_; }
  bool idle() const { return !writing_; }
  bool full() const { return wantsWrite_; }  // The kernel will say when there is room.
  int64_t lastReceived() const { return lastReceived_; }
  int64_t lastSent() const { return lastSent_; }
  Buffer& scratch() { return scratch_; }

  void onEvents(uint32_t events) override;

 private:
  bool readSome();     // False = stop reading for now.
  bool parseHeader();  // False = the link is lost.
  void write();
  bool writeFrame(size_t allowed);  // False = the kernel is full or the link is lost.
  void wantWrite(bool wanted);
  void lose(const std::string& reason);

  Loop& loop_;
  LinkOwner& owner_;
  const int fd_;
  const Node peer_;
  const int lane_;
  const size_t credit_;
  bool closed_ = false;
  bool dying_ = false;  // Writing has failed.
  bool wantsWrite_ = false;

  Header in_;                     // The frame being received.
  size_t inHeader_ = 0;           // Header bytes received.
  size_t inPayload_ = 0;          // Payload bytes received.
  std::byte* inPlace_ = nullptr;  // Where its payload goes.
  int64_t inStarted_ = 0;
  int64_t lastReceived_ = 0;

  OutFrame out_;  // The frame being sent, while writing_.
  bool writing_ = false;
  size_t outDone_ = 0;   // Bytes of header and payload given to the kernel.
  bool corked_ = false;  // The kernel was told that more follows.
  size_t unsent_ = 0;    // Bytes that may still wait in the kernel; it is asked only where that matters.
  int64_t lastSent_ = 0;

  Buffer kept_;     // The rest of a frame whose payload the caller took back.
  Buffer scratch_;  // For payloads that cannot go straight to their place.
};

}  // namespace dovetail
