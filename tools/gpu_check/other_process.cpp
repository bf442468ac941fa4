#include "tools/gpu_check/other_process.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/passed_fds.h"

extern char** environ;

namespace troupe::tools::gpu {
namespace {

constexpr int kWaitMs = 60'000;

}  // namespace

Result<OtherProcess> OtherProcess::start(const Bench& bench, std::vector<std::string> arguments) {
  const BenchOptions& options = bench.options();
  if (options.program.empty())
    return error(Code::kUnsupported, "this check starts a process of gpu_check: run it from there");
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    return error(Code::kResourceExhausted, "socketpair: {}", std::strerror(errno));
  UniqueFd ours(sockets[0]), theirs(sockets[1]);
  arguments.insert(arguments.begin(), options.program);
  for (const std::string& word : {std::string("--device"), std::to_string(options.device),
                                  std::string("--library"), options.library_path})
    arguments.push_back(word);
  std::vector<char*> argv;
  for (std::string& word : arguments) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), 3);
  pid_t pid = -1;
  const int code = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (code != 0) return error(Code::kInternal, "starting {}: {}", argv[0], std::strerror(code));
  return OtherProcess(pid, std::move(ours));
}

Status OtherProcess::wait_for_word() const {
  pollfd wait{socket_.get(), POLLIN, 0};
  if (::poll(&wait, 1, kWaitMs) != 1)
    return error(Code::kDeadlineExceeded, "the other process said nothing within {} s",
                 kWaitMs / 1000);
  return {};
}

Result<OtherProcess::Memory> OtherProcess::receive_memory() {
  TROUPE_RETURN_IF_ERROR(wait_for_word());
  Memory received;
  iovec part{&received.bytes, sizeof received.bytes};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  std::vector<UniqueFd> descriptors;
  if (size > 0) take_passed_fds(message, descriptors);
  if (size != sizeof received.bytes || descriptors.size() != 1)
    return error(Code::kUnavailable,
                 "the other process ended before it sent a descriptor; its own words are above");
  received.descriptor = std::move(descriptors.front());
  return received;
}

Result<std::int64_t> OtherProcess::receive_number() {
  TROUPE_RETURN_IF_ERROR(wait_for_word());
  std::int64_t number = 0;
  if (::recv(socket_.get(), &number, sizeof number, MSG_WAITALL) != sizeof number)
    return error(Code::kUnavailable, "the other process has ended");
  return number;
}

void OtherProcess::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);  // of a killed process: comes
  pid_ = -1;
}

Status send_memory(int socket, std::int64_t bytes, int descriptor) {
  iovec part{&bytes, sizeof bytes};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) != sizeof bytes)
    return error(Code::kUnavailable, "sending the descriptor: {}", std::strerror(errno));
  return {};
}

Status send_number(int socket, std::int64_t number) {
  if (::send(socket, &number, sizeof number, MSG_NOSIGNAL) != sizeof number)
    return error(Code::kUnavailable, "sending a number: {}", std::strerror(errno));
  return {};
}

void wait_for_end(int socket) {
  pollfd wait{socket, POLLIN, 0};
  ::poll(&wait, 1, kWaitMs);
}

}  // namespace troupe::tools::gpu
