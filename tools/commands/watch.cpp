#include "tools/commands/watch.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <fstream>
#include <istream>
#include <iterator>
#include <memory>
#include <utility>

#include "runtime/net/event_loop.h"
#include "runtime/process/child.h"
#include "runtime/process/executable.h"
#include "troupe/log.h"

namespace troupe::tools {
namespace {

constexpr std::size_t kRestartsMax = 20;
constexpr Duration kRestartWindow = std::chrono::seconds(60);
constexpr int kSignalExit = 128;  // and the signal, as shells say it

// The arguments of this process, as it was started.
std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> arguments;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find('\0', at), all.size());
    arguments.push_back(all.substr(at, end - at));
    at = end + 1;
  }
  return arguments;
}

// Standard input for a daemon that reads the token there.
Result<UniqueFd> input_with(const std::string& line) {
  UniqueFd file(::memfd_create("token", MFD_CLOEXEC));
  const std::string text = line + "\n";
  if (!file.valid() ||
      ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::lseek(file.get(), 0, SEEK_SET) != 0) {
    return errno_status(errno, "pass on", "the token");
  }
  return file;
}

// On the loop of run(), which is the thread whose end the daemon hears of.
class Watcher {
 public:
  Watcher(CommandContext& context, const WatchOptions& options)
      : context_(context), options_(options) {}

  Status run();

 private:
  Status start();
  void ended(wire::ExitStatus exit);
  void finish(Status result) {
    result_ = std::move(result);
    loop_->stop();
  }

  CommandContext& context_;
  const WatchOptions& options_;
  Logger log_ = Logger::to_stderr("watch");
  std::unique_ptr<net::RunnableLoop> loop_ = net::make_event_loop();
  std::shared_ptr<process::Executable> program_;
  std::vector<std::string> arguments_;
  std::string token_;
  process::Child daemon_;
  std::deque<TimePoint> restarts_;
  bool asked_to_end_ = false;
  Status result_;
};

Status Watcher::start() {
  process::SpawnOptions spawning;
  spawning.path = program_->path();
  spawning.executable_fd = program_->fd();
  spawning.argv = arguments_;
  UniqueFd input;
  if (options_.token_from_stdin) {
    input = TROUPE_TRY(input_with(token_));
    spawning.descriptors = {{.parent = input.get(), .child = STDIN_FILENO}};
  }
  // Its end is the daemon's end, in good order.
  spawning.parent_death_signal = SIGTERM;
  daemon_ = TROUPE_TRY(process::spawn(spawning));
  process::watch_exit(*loop_, daemon_, [this](wire::ExitStatus exit) { ended(exit); });
  return {};
}

void Watcher::ended(wire::ExitStatus exit) {
  if (exit.signal == 0 || asked_to_end_) {
    context_.exit_code = exit.signal == 0 ? exit.exit_code : kSignalExit + exit.signal;
    return finish({});
  }
  const TimePoint now = loop_->clock().now();
  restarts_.push_back(now);
  while (restarts_.front() + kRestartWindow < now) restarts_.pop_front();
  if (restarts_.size() > kRestartsMax) {
    return finish(error(Code::kAborted,
                        "the {} was {}; it was started {} times within {} s, and is given up",
                        options_.what, exit.to_string(), kRestartsMax,
                        std::chrono::duration_cast<std::chrono::seconds>(kRestartWindow).count()));
  }
  log_.warning("the {} (process {}) was {}: it is started again", options_.what, daemon_.pid,
               exit.to_string());
  if (Status started = start(); !started.ok()) finish(std::move(started));
}

Status Watcher::run() {
  program_ = TROUPE_TRY(process::Executable::self());
  for (std::string& argument : own_arguments()) {
    if (argument != "--watch") arguments_.push_back(std::move(argument));
  }
  arguments_.insert(arguments_.end(), options_.more.begin(), options_.more.end());
  if (options_.token_from_stdin) std::getline(context_.in, token_);
  ::signal(SIGPIPE, SIG_IGN);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    loop_->on_signal(signal, [this, signal] {
      asked_to_end_ = true;
      ::kill(daemon_.pid, signal);
    });
  }
  TROUPE_RETURN_IF_ERROR(start());
  loop_->run();
  return result_;
}

}  // namespace

Status watch_daemon(CommandContext& context, const WatchOptions& options) {
  return Watcher(context, options).run();
}

}  // namespace troupe::tools
