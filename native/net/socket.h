// One socket option or question a function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace dovetail {

void prepareSocket(int fd, int notSentLowat);  // Non-blocking, no delay, short kernel backlog, keepalive.
size_t notSent(int fd);                        // Bytes in the kernel that have not left yet.
size_t notConfirmed(int fd);                   // Bytes in the kernel that the peer has not confirmed.
void pushPending(int fd);                      // Have the kernel try again to send what it holds back.
std::string errorText(int error);

struct PathInfo {
  double rttSeconds = 0;
  double leastRttSeconds = 0;
  double bandwidth = 0;    // Bytes per second the kernel has seen delivered; 0 = unknown.
  double busySeconds = 0;  // Time with something to send.
  int64_t acked = 0;       // Bytes that the peer has confirmed.
};
PathInfo pathInfo(int fd);

}  // namespace dovetail
