#include "net/socket.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>

namespace dovetail {

namespace {

void setOption(int fd, int level, int name, int value) {
  // A socketpair in a test knows no TCP options; a missing option costs speed, never correctness.
  (void)setsockopt(fd, level, name, &value, sizeof value);
}

}  // namespace

void prepareSocket(int fd, int notSentLowat) {
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  setOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  setOption(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, notSentLowat);
  setOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

size_t notSent(int fd) {
  int bytes = 0;
  if (ioctl(fd, SIOCOUTQNSD, &bytes) != 0) return 0;
  return static_cast<size_t>(bytes);
}

size_t notConfirmed(int fd) {
  int bytes = 0;
  if (ioctl(fd, SIOCOUTQ, &bytes) != 0) return 0;
  return static_cast<size_t>(bytes);
}

void pushPending(int fd) {
  setOption(fd, IPPROTO_TCP, TCP_NODELAY,
            1);  // It is set already; saying so again makes TCP look at its queue.
}

std::string errorText(int error) {
  return std::strerror(error);
}

PathInfo pathInfo(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  return {.rttSeconds = info.tcpi_rtt * 1e-6,
          .leastRttSeconds = info.tcpi_min_rtt * 1e-6,
          .bandwidth = static_cast<double>(info.tcpi_delivery_rate),
          .busySeconds = static_cast<double>(info.tcpi_busy_time) * 1e-6,
          .acked = static_cast<int64_t>(info.tcpi_bytes_acked)};
}

}  // namespace dovetail
