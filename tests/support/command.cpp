#include "tests/support/command.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "runtime/base/check.h"

namespace troupe::tests {
namespace {

using Clock = std::chrono::steady_clock;

int milliseconds_until(Clock::time_point until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
  return left.count() < 0 ? 0 : static_cast<int>(left.count()) + 1;
}

struct Pipe {
  int read = -1;
  int write = -1;
  Pipe() {
    int fds[2];
    TROUPE_CHECK(::pipe2(fds, O_CLOEXEC) == 0);
    read = fds[0];
    write = fds[1];
  }
};

pid_t start(const std::vector<std::string>& argv, const CommandOptions& options, int in, int out,
            int err) {
  std::vector<std::string> environment;
  for (char** e = environ; *e; ++e) {
    const std::string entry = *e;
    if (!options.environment.contains(entry.substr(0, entry.find('='))))
      environment.push_back(entry);
  }
  for (const auto& [key, value] : options.environment) environment.push_back(key + "=" + value);
  std::vector<char*> arguments;
  for (const auto& a : argv) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> variables;
  for (const auto& v : environment) variables.push_back(const_cast<char*>(v.c_str()));
  variables.push_back(nullptr);
  const pid_t pid = ::fork();
  TROUPE_CHECK(pid >= 0);
  if (pid > 0) return pid;
  ::setpgid(0, 0);
  ::dup2(in, 0);
  ::dup2(out, 1);
  ::dup2(err, 2);
  if (!options.directory.empty() && ::chdir(options.directory.c_str()) != 0) ::_exit(126);
  ::execvpe(arguments[0], arguments.data(), variables.data());
  ::_exit(127);
}

int exit_code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool read_into(int fd, std::string& text) {
  char buffer[1 << 16];
  const ssize_t n = ::read(fd, buffer, sizeof buffer);
  if (n > 0) text.append(buffer, static_cast<std::size_t>(n));
  return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& argv, const CommandOptions& options) {
  Pipe in, out, err;
  const pid_t pid = start(argv, options, in.read, out.write, err.write);
  ::close(in.read);
  ::close(out.write);
  ::close(err.write);
  ::signal(SIGPIPE, SIG_IGN);
  std::size_t written = 0;
  while (written < options.input.size()) {
    const ssize_t n =
        ::write(in.write, options.input.data() + written, options.input.size() - written);
    if (n <= 0) break;
    written += static_cast<std::size_t>(n);
  }
  ::close(in.write);
  CommandResult result;
  const auto until = Clock::now() + options.timeout;
  bool out_open = true;
  bool err_open = true;
  while (out_open || err_open) {
    pollfd fds[2] = {{out_open ? out.read : -1, POLLIN, 0}, {err_open ? err.read : -1, POLLIN, 0}};
    const int left = milliseconds_until(until);
    if (left == 0 || ::poll(fds, 2, left) == 0) {
      result.timed_out = true;
      break;
    }
    if (fds[0].revents) out_open = read_into(out.read, result.out);
    if (fds[1].revents) err_open = read_into(err.read, result.err);
  }
  if (result.timed_out) ::kill(-pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  result.exit_code = exit_code_of(status);
  ::close(out.read);
  ::close(err.read);
  return result;
}

BackgroundCommand::BackgroundCommand(const std::vector<std::string>& argv,
                                     const CommandOptions& options) {
  Pipe out;
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  pid_ = start(argv, options, null, out.write, out.write);
  ::close(null);
  ::close(out.write);
  output_fd_ = out.read;
  pidfd_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  TROUPE_CHECK(pidfd_ >= 0);
}

BackgroundCommand::~BackgroundCommand() {
  if (exit_code_ < 0) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(pidfd_);
  ::close(output_fd_);
}

bool BackgroundCommand::read_some(Clock::time_point until) {
  pollfd fd = {output_fd_, POLLIN, 0};
  const int left = milliseconds_until(until);
  return left > 0 && ::poll(&fd, 1, left) > 0 && read_into(output_fd_, output_);
}

bool BackgroundCommand::wait_for_output(const std::string& text, std::chrono::seconds timeout,
                                        std::size_t from) {
  const auto until = Clock::now() + timeout;
  while (output_.find(text, from) == std::string::npos) {
    if (!read_some(until)) return output_.find(text, from) != std::string::npos;
  }
  return true;
}

void BackgroundCommand::kill(int signal) { ::kill(pid_, signal); }

int BackgroundCommand::wait(std::chrono::seconds timeout) {
  if (exit_code_ >= 0) return exit_code_;
  const auto until = Clock::now() + timeout;
  bool open = true;
  for (;;) {
    pollfd fds[2] = {{pidfd_, POLLIN, 0}, {open ? output_fd_ : -1, POLLIN, 0}};
    const int left = milliseconds_until(until);
    if (left == 0 || ::poll(fds, 2, left) == 0) return -1;
    if (fds[1].revents) open = read_into(output_fd_, output_);
    if (fds[0].revents) break;
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  exit_code_ = exit_code_of(status);
  const auto drain = Clock::now() + std::chrono::milliseconds(200);
  while (open && read_some(drain)) {
  }
  return exit_code_;
}

std::string command_line_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
  // A read that fails ends this, where one by iterators would throw.
  std::stringstream content;
  content << file.rdbuf();
  std::string line = content.str();
  for (char& c : line) {
    if (c == '\0') c = ' ';
  }
  return line;
}

std::vector<pid_t> processes_with(const std::string& text) {
  std::vector<pid_t> found;
  DIR* proc = ::opendir("/proc");
  TROUPE_CHECK(proc != nullptr);
  while (const dirent* entry = ::readdir(proc)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0 || pid == ::getpid()) continue;
    if (command_line_of(pid).find(text) != std::string::npos) found.push_back(pid);
  }
  ::closedir(proc);
  return found;
}

}  // namespace troupe::tests
