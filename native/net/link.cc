#include "net/link.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "net/socket.h"

namespace dovetail {

namespace {
// Per turn and link, so that one fast peer cannot keep the others waiting.
constexpr size_t kReadBudget = 512 * 1024;
constexpr size_t kSmall =
    8 * 1024;  // Frames below it share packets with the next, which is sent right after.
}  // namespace

Link::Link(Loop& loop, LinkOwner& owner, int fd, Node peer, int lane, int credit)
    : loop_(loop), owner_(owner), fd_(fd), peer_(peer), lane_(lane), credit_(static_cast<size_t>(credit)) {
  prepareSocket(fd, credit);
}

Link::~Link() {
  close();
  ::close(fd_);
}

void Link::start() {
  lastReceived_ = lastSent_ = nowNs();
  loop_.watch(fd_, this, EPOLLIN);
}

void Link::close() {
  if (closed_) return;
  closed_ = true;
  loop_.unwatch(fd_, this);
  ::shutdown(fd_, SHUT_RDWR);
}

void Link::lose(const std::string& reason) {
  if (closed_) return;
  close();
  owner_.linkLost(*this, reason);
}

void Link::onEvents(uint32_t events) {
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
    size_t before = 0;
    while (!closed_ && before < kReadBudget && readSome()) before += in_.length + sizeof(Header);
  }
  if (!closed_ && (events & EPOLLOUT)) pump();
}

// One recvmsg takes the rest of this frame and the next header.
bool Link::readSome() {
  std::array<iovec, 2> parts{};
  int count = 0;
  auto* header = reinterpret_cast<std::byte*>(&in_);
  Header next;
  const bool inPayload = inHeader_ == sizeof(Header);
  if (inPayload) {
    parts[count++] = {inPlace_ + inPayload_, in_.length - inPayload_};
    parts[count++] = {&next, sizeof next};
  } else {
    parts[count++] = {header + inHeader_, sizeof(Header) - inHeader_};
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = static_cast<size_t>(count);
  const ssize_t got = recvmsg(fd_, &message, 0);
  if (got == 0) return lose("closed the connection"), false;
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    return lose(errorText(errno)), false;
  }
  lastReceived_ = nowNs();
  auto left = static_cast<size_t>(got);
  // Less than asked for: the socket is empty, and epoll tells when it no longer is.
  const size_t asked = parts[0].iov_len + parts[1].iov_len;
  const bool more = left == asked;
  if (!inPayload) {
    inHeader_ += left;
    return inHeader_ < sizeof(Header) ? more : parseHeader();
  }
  const size_t taken = std::min(left, static_cast<size_t>(in_.length) - inPayload_);
  inPayload_ += taken;
  left -= taken;
  if (inPayload_ < in_.length) return more;
  owner_.frameArrived(*this, in_, inStarted_);
  if (closed_) return false;
  in_ = next;
  inHeader_ = left;
  return inHeader_ < sizeof(Header) ? more : parseHeader();
}

bool Link::parseHeader() {
  if (in_.length > kMaxPayload) return lose("sent bytes that are not dovetail's"), false;
  if (!owner_.accepts(*this, in_)) return lose("sent a frame that does not fit the job"), false;
  inStarted_ = lastReceived_;
  inPayload_ = 0;
  inPlace_ = nullptr;
  if (in_.length > 0) {
    inPlace_ = owner_.placeFor(*this, in_);
    if (closed_) return false;
    if (inPlace_ == nullptr) return lose("sent a frame that does not fit the job"), false;
    return true;
  }
  owner_.frameArrived(*this, in_, inStarted_);
  inHeader_ = 0;
  return !closed_;
}

void Link::divert() {
  if (receiving() == nullptr) return;
  scratch_.reserve(in_.length);
  inPlace_ = scratch_.data();
}

void Link::leaveCallersMemory() {
  divert();
  if (!writing_ || out_.payload == nullptr) return;
  kept_.reserve(out_.header.length);
  std::memcpy(kept_.data(), out_.payload, out_.header.length);
  out_.payload = kept_.data();
}

void Link::pump() {
  write();
  if (!std::exchange(corked_, false) || closed_) return;
  pushPending(fd_);  // What was to follow has to wait; what was to wait for it need not.
}

void Link::write() {
  while (!closed_ && !dying_) {
    if (!writing_ && !owner_.hasNext(*this)) return wantWrite(false);
    // The credit: bytes that are in the kernel can no longer be overtaken.
    if (!writing_ && unsent_ >= credit_ && (unsent_ = notSent(fd_)) >= credit_ && !owner_.urgent(*this)) {
      return wantWrite(true);
    }
    const size_t allowed = owner_.allowance(*this);
    if (allowed == 0) return wantWrite(false);
    if (!writing_) {
      const int64_t wait = loop_.throttle().waitFor(nowNs());
      if (wait > 0 && !owner_.urgent(*this)) {
        loop_.wakeAt(nowNs() + wait);
        return wantWrite(false);
      }
      out_ = owner_.nextFrame(*this);
      writing_ = true;
      outDone_ = 0;
      out_.started = nowNs();
      loop_.throttle().spend(sizeof(Header) + out_.header.length);
    }
    if (!writeFrame(allowed)) return;
  }
}

bool Link::writeFrame(size_t allowed) {
  const size_t total = sizeof(Header) + out_.header.length;
  // Unless turns are taken: what waits for the next frame would wait for the next turn.
  const bool follows = allowed == std::numeric_limits<size_t>::max() && owner_.hasNext(*this);
  const bool shares = total < kSmall && !loop_.throttle().limited() && follows;
  const size_t end = allowed < total - outDone_ ? outDone_ + allowed : total;
  while (outDone_ < end) {
    std::array<iovec, 2> parts{};
    int count = 0;
    if (outDone_ < sizeof(Header)) {
      parts[count++] = {reinterpret_cast<std::byte*>(&out_.header) + outDone_, sizeof(Header) - outDone_};
    }
    const size_t sent = outDone_ > sizeof(Header) ? outDone_ - sizeof(Header) : 0;
    if (out_.header.length > sent) {
      // The header goes along, whatever is allowed.
      const size_t upTo = std::max(end, sizeof(Header)) - sizeof(Header);
      parts[count++] = {const_cast<std::byte*>(out_.payload) + sent, upTo - sent};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t wrote = sendmsg(fd_, &message, MSG_NOSIGNAL | (shares ? MSG_MORE : 0));
    if (wrote < 0) {
      if (errno == EAGAIN || errno == EINTR) return wantWrite(true), false;
      const std::string reason = errorText(errno);
      // What the peer said before it went may still be there to read, and is the better reason.
      dying_ = true;
      while (!closed_ && readSome()) continue;
      return lose(reason), false;
    }
    corked_ = shares;
    outDone_ += static_cast<size_t>(wrote);
    unsent_ += static_cast<size_t>(wrote);
    lastSent_ = nowNs();
    owner_.wrote(*this, static_cast<size_t>(wrote));
  }
  if (outDone_ < total) return true;
  writing_ = false;
  owner_.frameSent(*this, out_);
  return true;
}

void Link::wantWrite(bool wanted) {
  if (wanted == wantsWrite_ || closed_) return;
  wantsWrite_ = wanted;
  loop_.rewatch(fd_, this, wanted ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

}  // namespace dovetail
