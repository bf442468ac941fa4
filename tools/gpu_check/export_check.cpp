#include "tools/gpu_check/export_check.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/passed_fds.h"
#include "runtime/base/unique_fd.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/check.h"
#include "train/cuda/device/device_memory.h"
#include "train/cuda/device/host_transfer.h"

extern char** environ;

namespace troupe::tools::gpu {
namespace {

constexpr int kChildWaitMs = 60'000;

std::vector<std::uint32_t> pattern(std::int64_t bytes) {
  std::vector<std::uint32_t> words(static_cast<std::size_t>(bytes / 4));
  std::uint32_t value = 1;
  for (std::uint32_t& word : words) word = value = value * 1664525u + 1013904223u;
  return words;
}

// The allocation's size, which may be more than was asked for, with its descriptor.
Status send_descriptor(int socket, std::int64_t bytes, int descriptor) {
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

struct Received {
  std::int64_t bytes = 0;
  UniqueFd descriptor;
};

Result<Received> receive_descriptor(int socket) {
  pollfd wait{socket, POLLIN, 0};
  if (::poll(&wait, 1, kChildWaitMs) != 1)
    return error(Code::kDeadlineExceeded, "the other process sent no descriptor within {} s",
                 kChildWaitMs / 1000);
  Received received;
  iovec part{&received.bytes, sizeof received.bytes};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  std::vector<UniqueFd> descriptors;
  if (size > 0) take_passed_fds(message, descriptors);
  if (size != sizeof received.bytes || descriptors.size() != 1)
    return error(Code::kUnavailable,
                 "the other process ended before it sent a descriptor; its own words are above");
  received.descriptor = std::move(descriptors.front());
  return received;
}

// A process that is killed and taken leave of, whatever happens.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);  // of a killed process: comes
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

Result<Figure> check_export(Bench& bench) {
  if (bench.is_open())
    return error(Code::kFailedPrecondition, "this process has a context already");
  if (bench.options().program.empty())
    return error(Code::kUnsupported, "this check starts a process of gpu_check: run it from there");
  const std::int64_t asked = bench.rehearsal() ? 1 << 20 : 256 << 20;
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    return error(Code::kResourceExhausted, "socketpair: {}", std::strerror(errno));
  UniqueFd ours(sockets[0]), theirs(sockets[1]);

  const std::string bytes = std::to_string(asked), device = std::to_string(bench.options().device);
  std::vector<std::string> words = {bench.options().program,
                                    "--export-child",
                                    "3",
                                    "--bytes",
                                    bytes,
                                    "--device",
                                    device,
                                    "--library",
                                    bench.options().library_path};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), 3);
  pid_t pid = -1;
  const int code = ::posix_spawn(&pid, words[0].c_str(), &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (code != 0) return error(Code::kInternal, "starting {}: {}", words[0], std::strerror(code));
  Child child(pid);
  theirs.reset();
  const Received received = TROUPE_TRY(receive_descriptor(ours.get()));
  child.kill();

  // Only the descriptor holds the bytes now; this process had no context until here.
  Gpu* gpu = TROUPE_TRY(bench.gpu());
  const auto memory = TROUPE_TRY(train::DeviceMemory::import(
      gpu->device, received.descriptor.get(), received.bytes, "what the other process left",
      {{train::MemoryPurpose::kOther, received.bytes}}));
  const std::vector<std::uint32_t> expected = pattern(asked);
  std::vector<std::uint32_t> got(expected.size());
  gpu->operators->download(memory.data(), got.data(), got.size() * 4);
  TROUPE_RETURN_IF_ERROR(gpu->operators->synchronize());
  std::int64_t differing = 0;
  for (std::size_t i = 0; i < got.size(); ++i) differing += got[i] != expected[i];
  return Figure{
      .value = static_cast<double>(differing),
      .unit = "words that differ",
      .bar = Figure::Bar::kAtMost,
      .bar_value = 0,
      .text = fmt::format("of {}, after kill -9 of the process that had written them, held "
                          "by a descriptor in a process without a context",
                          expected.size())};
}

}  // namespace

Status run_export_child(std::shared_ptr<const train::CudaLibrary> library, int device,
                        std::int64_t bytes, int socket) {
  const auto gpu =
      TROUPE_TRY(train::CudaDevice::open(std::move(library), device, SystemEnvironment()));
  const auto memory = TROUPE_TRY(train::DeviceMemory::allocate(
      gpu, bytes, "what outlives this process", {{train::MemoryPurpose::kOther, bytes}}, true));
  train::CudaStream stream = TROUPE_TRY(train::CudaStream::create(gpu));
  train::HostTransfer transfer = TROUPE_TRY(train::HostTransfer::create(stream));
  const std::vector<std::uint32_t> words = pattern(bytes);
  TROUPE_RETURN_IF_ERROR(transfer.upload(words.data(), memory.data(), bytes));
  TROUPE_RETURN_IF_ERROR(stream.wait("filling memory"));
  const UniqueFd descriptor = TROUPE_TRY(memory.export_descriptor());
  TROUPE_RETURN_IF_ERROR(send_descriptor(socket, memory.size(), descriptor.get()));
  // Killed here; the socket's end is the other process's, and a deadline is for neither.
  pollfd wait{socket, POLLIN, 0};
  ::poll(&wait, 1, kChildWaitMs);
  return {};
}

void add_export_check(std::vector<Check>& checks) {
  checks.push_back({"memory/outlives its process",
                    "exported memory keeps its bytes behind a descriptor alone, after kill -9", 5,
                    check_export});
}

}  // namespace troupe::tools::gpu
