#pragma once
// A process of gpu_check that a check starts, hears of over a socket, and kills.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "tools/gpu_check/bench.h"
#include "troupe/unique_fd.h"

namespace troupe::tools::gpu {

// Killed and taken leave of when it goes, whatever happens. One thread.
class OtherProcess {
 public:
  // This program with these arguments and the bench's device and library; its end of the socket is
  // descriptor 3. kUnsupported: the bench knows no program.
  static Result<OtherProcess> start(const Bench& bench, std::vector<std::string> arguments);
  OtherProcess(OtherProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), socket_(std::move(other.socket_)) {}
  OtherProcess& operator=(OtherProcess&&) = delete;
  ~OtherProcess() { kill(); }

  // An allocation that it sent by send_memory().
  struct Memory {
    std::int64_t bytes = 0;
    UniqueFd descriptor;
  };
  Result<Memory> receive_memory();
  // The next number that it sent by send_number(). kUnavailable: it has ended.
  Result<std::int64_t> receive_number();
  // kill -9, and its end is waited for.
  void kill();

 private:
  OtherProcess(pid_t pid, UniqueFd socket) : pid_(pid), socket_(std::move(socket)) {}
  Status wait_for_word() const;
  pid_t pid_;
  UniqueFd socket_;
};

// --- the other process's side
// The allocation's size, which may be more than was asked for, with its descriptor.
Status send_memory(int socket, std::int64_t bytes, int descriptor);
Status send_number(int socket, std::int64_t number);
// To be killed, or for the end of who started it; at most a minute.
void wait_for_end(int socket);

}  // namespace troupe::tools::gpu
