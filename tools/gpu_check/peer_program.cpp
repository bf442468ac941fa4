#include "tools/gpu_check/peer_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>

#include "runtime/base/file_system.h"
#include "runtime/process/child.h"
#include "runtime/process/spawn.h"
#include "troupe/unique_fd.h"

namespace troupe::tools::gpu {
namespace {

constexpr const char kPeerText[] =
#include "gpu_check_peer.inc"
    ;

// `env` answers so where it does not find a program.
constexpr int kNotFoundExit = 127;
constexpr std::uint64_t kPeerOutputBytesMax = 4u << 20;
constexpr std::size_t kPeerToldBytes = 800;

std::string last_of(const std::string& text) {
  return text.size() <= kPeerToldBytes ? text : "…" + text.substr(text.size() - kPeerToldBytes);
}

}  // namespace

Result<PeerProgram> PeerProgram::make(const Bench& bench, std::string folder) {
  PosixFileSystem files;
  TROUPE_RETURN_IF_ERROR(write_file_atomically(files, folder + "/peer.py", kPeerText));
  return PeerProgram(bench.options().python, std::move(folder), bench.rehearsal() ? "cpu" : "cuda",
                     TROUPE_TRY(bench.device_environment()));
}

Status PeerProgram::unavailable(const std::string& why) const {
  return error(Code::kUnsupported,
               "no PyTorch to compare with: {}; --python PATH names a Python that has torch, and "
               "transformers where it is to be Hugging Face's",
               why);
}

Result<json::Value> PeerProgram::run(std::vector<std::string> arguments, Duration limit) const {
  const auto output = [&](const char* name) {
    return UniqueFd(
        ::open((folder_ + name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  };
  const UniqueFd out = output("/peer.out"), log = output("/peer.log");
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!out.valid() || !log.valid() || !nothing.valid())
    return error(Code::kPermissionDenied, "{}/peer.out: {}", folder_, std::strerror(errno));
  // `env` looks names up in PATH.
  arguments.insert(arguments.begin(), {"/usr/bin/env", python_, folder_ + "/peer.py"});
  std::map<std::string, std::string> environment = environment_;
  environment["TORCHINDUCTOR_CACHE_DIR"] = folder_ + "/inductor";
  environment["TRITON_CACHE_DIR"] = folder_ + "/triton";
  // It brings libraries of its own; what a packed gpu_check puts before them is not for it.
  if (const char* before = std::getenv("TROUPE_PEER_LD_LIBRARY_PATH"))
    environment["LD_LIBRARY_PATH"] = before;
  const process::Child child = TROUPE_TRY(
      process::spawn({.path = arguments[0],
                      .argv = arguments,
                      .environment = std::move(environment),
                      .descriptors = {{nothing.get(), 0}, {out.get(), 1}, {log.get(), 2}},
                      .parent_death_signal = SIGKILL}));
  const auto ended = process::wait(child, Deadline::after(limit));
  if (!ended.ok()) {
    (void)process::kill_group(child.pid, SIGKILL);
    (void)process::wait(child, Deadline::after(std::chrono::seconds(20)));
    return error(Code::kDeadlineExceeded, "PyTorch's program did not end within {} s",
                 std::chrono::duration_cast<std::chrono::seconds>(limit).count());
  }
  if (ended->exit_code == kNotFoundExit) return unavailable("there is no " + python_);
  PosixFileSystem files;
  if (ended->signal != 0 || ended->exit_code != 0)
    return error(Code::kFailedPrecondition, "PyTorch's program ended with {}; it said: {}",
                 ended->signal != 0 ? fmt::format("signal {}", ended->signal)
                                    : fmt::format("code {}", ended->exit_code),
                 last_of(files.read(folder_ + "/peer.log", kPeerOutputBytesMax).value_or("")));
  // Libraries may have said something before.
  std::string text = TROUPE_TRY(files.read(folder_ + "/peer.out", kPeerOutputBytesMax));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const std::size_t line = text.rfind('\n');
  json::Value said = TROUPE_TRY(json::parse(
      line == std::string::npos ? text : text.substr(line + 1), "what PyTorch's program says"));
  if (const auto why = json::find_string(said, "unavailable")) return unavailable(*why);
  return said;
}

}  // namespace troupe::tools::gpu
