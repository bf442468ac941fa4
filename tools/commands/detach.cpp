#include "tools/commands/detach.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"

namespace troupe::tools {
namespace {

constexpr std::string_view kReportFlag = "--start-report-fd=";
// How often the log is looked into while the run starts.
constexpr auto kLogLook = std::chrono::milliseconds(100);
// For a run that was told to end while it started; then it is killed.
constexpr auto kStartedRunEndTimeout = std::chrono::seconds(15);

// Signals as something to read, for as long as the object lives. SIGHUP too, unless it was ignored
// before (nohup).
class WaitingSignals {
 public:
  WaitingSignals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM}) sigaddset(&set, signal);
    struct sigaction hangup {};
    ::sigaction(SIGHUP, nullptr, &hangup);
    if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~WaitingSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WaitingSignals(const WaitingSignals&) = delete;
  WaitingSignals& operator=(const WaitingSignals&) = delete;
  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; }
  int take() {
    signalfd_siginfo info;
    return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                                : 0;
  }

 private:
  sigset_t before_;
  UniqueFd fd_;
};

// A process in a session of its own: this program again. `report` becomes descriptor 3.
Result<pid_t> start_session(const std::vector<std::string>& arguments, int log, int report,
                            const sigset_t& signals) {
  std::vector<std::string> words = {"troupe"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, log, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, log, STDERR_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, report, 3);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  ::posix_spawnattr_setsigmask(&attributes, &signals);
  pid_t pid = 0;
  const int failed =
      ::posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, argv.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return errno_status(failed, "start", "the detached run");
  return pid;
}

// What the run wrote to its log since it began, shown as it comes.
class LogTail {
 public:
  LogTail(int fd, std::ostream& out) : fd_(fd), out_(out), offset_(::lseek(fd, 0, SEEK_END)) {}
  void show() {
    char chunk[1 << 14];
    for (ssize_t n; (n = ::pread(fd_, chunk, sizeof chunk, offset_)) > 0; offset_ += n) {
      out_.write(chunk, n);
    }
    out_.flush();
  }

 private:
  int fd_;
  std::ostream& out_;
  off_t offset_;
};

// The run's end, which comes soon: it was told to, or has said why.
siginfo_t wait_end(pid_t pid, int process) {
  pollfd entry{process, POLLIN, 0};
  const Deadline deadline = Deadline::after(kStartedRunEndTimeout);
  while (!deadline.passed()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    if (::poll(&entry, 1, static_cast<int>(left.count())) > 0) break;
  }
  if (entry.revents == 0) ::kill(pid, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED);
  return info;
}

}  // namespace

std::optional<StartReport> StartReport::take(std::vector<std::string>& arguments) {
  const auto found = std::find_if(arguments.begin(), arguments.end(), [](const std::string& word) {
    return word.starts_with(kReportFlag);
  });
  if (found == arguments.end()) return std::nullopt;
  const int fd = std::atoi(found->c_str() + kReportFlag.size());
  arguments.erase(found);
  // Not into the trainers: the command would wait for them.
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return std::nullopt;
  return StartReport(UniqueFd(fd));
}

void StartReport::started(const std::string& run) {
  const std::string line = json::write(json::Object{{"run", run}}) + "\n";
  // A pipe that nobody reads any more must not end the run.
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  [[maybe_unused]] const auto written = ::write(pipe_.get(), line.data(), line.size());
  ::signal(SIGPIPE, before);
  pipe_.reset();
}

Result<std::optional<DetachedRun>> run_detached(CommandContext& context,
                                                std::vector<std::string> arguments,
                                                const std::string& log) {
  // The report's end must not be 3 before it becomes 3: it would be closed at exec.
  const UniqueFd log_file(::open(log.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (!log_file.valid()) return errno_status(errno, "open", log);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_status(errno, "make", "a pipe");
  const UniqueFd report(ends[0]);
  UniqueFd report_end(::fcntl(ends[1], F_DUPFD_CLOEXEC, 10));
  ::close(ends[1]);
  if (!report_end.valid()) return errno_status(errno, "make", "a pipe");

  WaitingSignals signals;
  LogTail tail(log_file.get(), context.err);
  arguments.insert(arguments.begin() + 1, std::string(kReportFlag) + "3");
  const pid_t pid =
      TROUPE_TRY(start_session(arguments, log_file.get(), report_end.get(), signals.before()));
  report_end.reset();
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));

  std::string text;
  for (;;) {
    pollfd fds[2] = {{report.get(), POLLIN, 0}, {signals.fd(), POLLIN, 0}};
    ::poll(fds, 2, static_cast<int>(kLogLook.count()));
    tail.show();
    if (fds[1].revents != 0) {
      const int signal = signals.take();
      if (signal == SIGHUP) {
        return error(Code::kCancelled, "the terminal is gone; the run goes on as process {}", pid);
      }
      if (signal != 0) {
        ::kill(pid, signal);
        wait_end(pid, process.get());
        tail.show();
        context.exit_code = 128 + signal;
        return error(Code::kCancelled, "interrupted while the run started");
      }
    }
    if (fds[0].revents == 0) continue;
    char chunk[4096];
    const ssize_t n = ::read(report.get(), chunk, sizeof chunk);
    if (n > 0) text.append(chunk, static_cast<std::size_t>(n));
    if (n < 0 && errno == EINTR) continue;
    if (const auto end = text.find('\n'); end != std::string::npos) {
      const auto line = TROUPE_TRY(json::parse(text.substr(0, end), "the run's report"));
      return std::optional(DetachedRun{json::find_string(line, "run").value_or(""), pid});
    }
    if (n > 0) continue;
    const siginfo_t info = wait_end(pid, process.get());
    tail.show();
    if (info.si_code != CLD_EXITED) {
      return error(Code::kInternal,
                   "the run was ended by signal {} (SIG{}) before it had started; its output is in "
                   "{}",
                   info.si_status, sigabbrev_np(info.si_status), log);
    }
    context.exit_code = info.si_status;
    return std::optional<DetachedRun>();
  }
}

}  // namespace troupe::tools
