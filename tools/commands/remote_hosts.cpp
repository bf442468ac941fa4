#include "tools/commands/remote_hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>

#include "runtime/base/file_system.h"
#include "runtime/base/suggest.h"
#include "runtime/net/token.h"
#include "runtime/process/child.h"
#include "runtime/process/executable.h"
#include "runtime/wire/types.h"
#include "scheduler/client/cluster_record.h"
#include "tools/commands/shell_quoted.h"
#include "tools/commands/version.h"
#include "tools/commands/worker.h"

namespace troupe::tools {
namespace {

constexpr std::size_t kLastLines = 3;
constexpr std::size_t kLineBytesMax = 4096;
constexpr int kPollMs = 100;
constexpr int kShellFoundNoProgram = 127;
constexpr int kOtherVersion = 3;

Result<std::pair<UniqueFd, UniqueFd>> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_status(errno, "make", "a pipe");
  return std::pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

}  // namespace

// A host's ssh, from its start to its end.
struct RemoteSession {
  RemoteHost host;
  enum class Phase { kWaiting, kOnItsWay, kThere, kEnded } phase = Phase::kWaiting;
  process::Child child;
  UniqueFd input, output;
  std::optional<Deadline> deadline;  // kOnItsWay
  std::string line;                  // begun
  std::deque<std::string> last_lines;
  std::string end;  // how it ended, for people
  bool clean_end = false;

  bool running() const { return phase == Phase::kOnItsWay || phase == Phase::kThere; }
  void take_line() {
    while (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.find(kJoinedWords) != std::string::npos && phase == Phase::kOnItsWay) {
      phase = Phase::kThere;
    } else if (!line.empty()) {
      last_lines.push_back(line);
      if (last_lines.size() > kLastLines) last_lines.pop_front();
    }
    line.clear();
  }
  // False: it has closed its output.
  bool read_output() {
    char bytes[4096];
    for (;;) {
      const auto count = ::read(output.get(), bytes, sizeof bytes);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno == EAGAIN;
      if (count == 0) return false;
      for (const char c : std::string_view(bytes, static_cast<std::size_t>(count))) {
        if (c == '\n') {
          take_line();
        } else if (line.size() < kLineBytesMax) {
          line += c;
        }
      }
    }
  }
  // Far less than a socket holds. One that takes nothing has ended, or is about to be found lost.
  void write_input(const std::string& text) {
    static_cast<void>(::send(input.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) <
                      0);
  }
  std::string said() const {
    return join_words(std::vector<std::string>(last_lines.begin(), last_lines.end()), "; ");
  }
};

std::vector<std::string> ssh_program(const Environment& environment) {
  std::vector<std::string> words;
  for (const std::string& word : split_words(environment.get("TROUPE_SSH").value_or("ssh"), ' ')) {
    if (!word.empty()) words.push_back(word);
  }
  if (words.empty()) words.emplace_back("ssh");
  return words;
}

std::string remote_command(const RemoteHostsOptions& options, const RemoteHost& host,
                           const std::string& program, const std::string& version) {
  std::string worker =
      fmt::format("worker --address {} --token-stdin --with-stdin --timeout {}",
                  shell_quoted(scheduler::format_address(options.head.host, options.head.port)),
                  std::chrono::duration_cast<std::chrono::seconds>(options.join_timeout).count());
  for (const std::string& argument : host.worker_arguments) worker += " " + shell_quoted(argument);
  const std::string script = fmt::format(
      "t=${{TROUPE:-{0}}}; [ -x \"$t\" ] || t=troupe; "
      "command -v \"$t\" >/dev/null || {{ echo \"no troupe here: neither \"{0}\" nor in PATH\" "
      ">&2; "
      "exit {3}; }}; "
      "v=$(echo $(\"$t\" version 2>&1 </dev/null | head -n 2)); "
      "[ \"$v\" = {1} ] || {{ echo \"$t is $v, and the run is started by \"{1} >&2; exit {4}; }}; "
      "{5}exec \"$t\" {2}",
      shell_quoted(program), shell_quoted(version), worker, kShellFoundNoProgram, kOtherVersion,
      host.visible_devices.empty()
          ? std::string()
          : fmt::format("export CUDA_VISIBLE_DEVICES={}; ", shell_quoted(host.visible_devices)));
  return "exec sh -c " + shell_quoted(script);
}

struct RemoteHosts::State {
  RemoteHostsOptions options;
  std::string program;
  std::string version;
  std::string token;
  mutable std::mutex mutex;
  // The sessions' thread alone starts, reads and reaps them; others look, and write to `input`.
  std::vector<RemoteSession> sessions;
  bool ending = false;
  std::optional<Deadline> end_by;
  UniqueFd wake;

  void run();
  Status start(RemoteSession& session);
  void ended(RemoteSession& session);
  void close_all();
};

Status RemoteHosts::State::start(RemoteSession& session) {
  // A socket, where writing to one that has ended raises no SIGPIPE.
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return errno_status(errno, "make", "a socket pair");
  }
  UniqueFd input(ends[0]);
  const UniqueFd child_input(ends[1]);
  auto output = TROUPE_TRY(make_pipe());
  process::SpawnOptions spawn;
  spawn.path = "/usr/bin/env";
  spawn.argv = {"env"};
  spawn.argv.insert(spawn.argv.end(), options.ssh.begin(), options.ssh.end());
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(options.connect_timeout).count();
  for (const std::string& option :
       {std::string("BatchMode=yes"), std::string("StrictHostKeyChecking=yes"),
        fmt::format("ConnectTimeout={}", seconds), std::string("ServerAliveInterval=10"),
        std::string("ServerAliveCountMax=3"), std::string("ControlPath=none")}) {
    spawn.argv.insert(spawn.argv.end(), {"-o", option});
  }
  spawn.argv.insert(spawn.argv.end(), {"-T", "--", session.host.name,
                                       remote_command(options, session.host, program, version)});
  spawn.descriptors = {{.parent = child_input.get(), .child = 0},
                       {.parent = output.second.get(), .child = 1},
                       {.parent = output.second.get(), .child = 2}};
  spawn.parent_death_signal = SIGKILL;
  session.child = TROUPE_TRY(process::spawn(spawn));
  session.input = std::move(input);
  session.output = std::move(output.first);
  ::fcntl(session.output.get(), F_SETFL, O_NONBLOCK);
  session.phase = RemoteSession::Phase::kOnItsWay;
  session.deadline = Deadline::after(options.join_timeout);
  session.write_input(token);
  return {};
}

// Its output has closed: the process is gone, or about to go.
void RemoteHosts::State::ended(RemoteSession& session) {
  session.take_line();
  session.input.reset();
  session.output.reset();
  const bool was_there = session.phase == RemoteSession::Phase::kThere;
  session.phase = RemoteSession::Phase::kEnded;
  auto exit = process::wait(session.child, Deadline::after(std::chrono::seconds(1)));
  if (!exit.ok()) {
    static_cast<void>(process::kill_group(session.child.pid, SIGKILL));
    exit = process::wait(session.child, Deadline::after(std::chrono::seconds(5)));
  }
  const std::string how = !exit.ok()          ? exit.status().message()
                          : exit->signal != 0 ? fmt::format("signal {}", exit->signal)
                                              : fmt::format("exit code {}", exit->exit_code);
  session.clean_end = exit.ok() && exit->signal == 0 && exit->exit_code == 0;
  if (!session.end.empty()) return;  // known already
  session.end =
      fmt::format("{}{}{}", session.said(), session.said().empty() ? "" : " ",
                  was_there ? fmt::format("(it left with {})", how) : fmt::format("({})", how));
}

void RemoteHosts::State::close_all() {
  for (RemoteSession& session : sessions) {
    session.input.reset();
    if (session.phase == RemoteSession::Phase::kWaiting)
      session.phase = RemoteSession::Phase::kEnded;
  }
}

void RemoteHosts::State::run() {
  bool killed = false;
  for (;;) {
    std::vector<pollfd> watched{{wake.get(), POLLIN, 0}};
    std::vector<std::size_t> whose;
    {
      const std::lock_guard lock(mutex);
      int on_their_way = 0;
      for (const RemoteSession& session : sessions) {
        on_their_way += session.phase == RemoteSession::Phase::kOnItsWay ? 1 : 0;
      }
      for (std::size_t i = 0; i < sessions.size(); ++i) {
        RemoteSession& session = sessions[i];
        if (session.phase == RemoteSession::Phase::kWaiting && on_their_way < options.at_once_max) {
          ++on_their_way;
          if (const Status started = start(session); !started.ok()) {
            session.phase = RemoteSession::Phase::kEnded;
            session.end = started.message();
          }
        }
        if (session.phase == RemoteSession::Phase::kOnItsWay && session.deadline->passed()) {
          session.end = fmt::format(
              "it did not join within {} s: {}",
              std::chrono::duration_cast<std::chrono::seconds>(options.join_timeout).count(),
              session.said().empty() ? "nothing was heard of it" : session.said());
          static_cast<void>(process::kill_group(session.child.pid, SIGKILL));
          ended(session);
        }
        if (!session.running()) continue;
        watched.push_back({session.output.get(), POLLIN, 0});
        whose.push_back(i);
      }
      if (ending) {
        if (whose.empty()) return;
        if (end_by->passed() && !std::exchange(killed, true)) {
          for (const std::size_t i : whose) {
            static_cast<void>(process::kill_group(sessions[i].child.pid, SIGKILL));
          }
        }
      }
    }
    ::poll(watched.data(), watched.size(), kPollMs);  // looks again for deadlines
    std::uint64_t count = 0;
    static_cast<void>(::read(wake.get(), &count, sizeof count) < 0);
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < whose.size(); ++i) {
      RemoteSession& session = sessions[whose[i]];
      if (watched[i + 1].revents != 0 && session.running() && !session.read_output()) {
        ended(session);
      }
    }
  }
}

RemoteHosts::RemoteHosts(std::unique_ptr<State> state) : state_(std::move(state)) {
  thread_ = std::thread([state = state_.get()] { state->run(); });
}

Result<std::unique_ptr<RemoteHosts>> RemoteHosts::start(RemoteHostsOptions options) {
  auto state = std::make_unique<State>();
  state->program = TROUPE_TRY(process::Executable::self())->path();
  state->version = fmt::format("{} protocol {}", version_line(), wire::kProtocolVersion);
  const std::string whole = TROUPE_TRY(net::token_text(options.token));
  state->token = whole.substr(0, whole.find('\n')) + "\n";
  for (RemoteHost& host : options.hosts) {
    state->sessions.emplace_back().host = std::move(host);
  }
  options.hosts.clear();
  state->options = std::move(options);
  state->wake = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return std::unique_ptr<RemoteHosts>(new RemoteHosts(std::move(state)));
}

RemoteHosts::~RemoteHosts() { end(); }

Status RemoteHosts::failure() const {
  const std::lock_guard lock(state_->mutex);
  std::string named;
  std::size_t failed = 0;
  for (const RemoteSession& session : state_->sessions) {
    using Phase = RemoteSession::Phase;
    if (session.phase == Phase::kWaiting || session.phase == Phase::kOnItsWay) return {};
    if (session.phase != Phase::kEnded) continue;
    ++failed;
    named += fmt::format("\n  {}: {}", session.host.name, session.end);
  }
  if (failed == 0) return {};
  return error(Code::kUnavailable,
               "{} of {} other hosts failed, and the run is ended on the rest:{}", failed,
               state_->sessions.size(), named);
}

void RemoteHosts::signal(int signal) {
  const std::lock_guard lock(state_->mutex);
  const std::string line = fmt::format("signal {}\n", signal);
  for (RemoteSession& session : state_->sessions) {
    if (session.phase != RemoteSession::Phase::kThere) continue;
    session.write_input(line);
  }
}

void RemoteHosts::end(Duration grace) {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->ending = true;
    state_->end_by = Deadline::after(grace);
    state_->close_all();
    const std::uint64_t one = 1;
    static_cast<void>(::write(state_->wake.get(), &one, sizeof one) < 0);
  }
  thread_.join();
}

}  // namespace troupe::tools
