#include "runtime/process/child.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/file_system.h"

namespace troupe::process {
namespace {

// glibc 2.36 names it, older headers do not.
constexpr auto kByPidfd = static_cast<idtype_t>(3);

constexpr auto kPollFirst = std::chrono::milliseconds(1);
constexpr auto kPollMost = std::chrono::milliseconds(20);

// How it ended, or nothing while it runs.
std::optional<wire::ExitStatus> reap(int pidfd) {
  siginfo_t info{};
  int result;
  do {
    result = ::waitid(kByPidfd, static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG);
  } while (result != 0 && errno == EINTR);
  if (result != 0) return kUnknownExit;
  if (info.si_pid == 0) return std::nullopt;
  if (info.si_code == CLD_EXITED) return wire::ExitStatus{.exit_code = info.si_status};
  return wire::ExitStatus{.exit_code = 0, .signal = info.si_status};
}

struct ProcessEntry {
  pid_t pid = 0;
  char state = 0;
  pid_t parent = 0;
  pid_t group = 0;
};

// /proc/PID/stat: "pid (name) state ppid pgrp …"; the name may hold anything, so look behind the
// last parenthesis.
std::optional<ProcessEntry> read_entry(const char* pid) {
  const std::string path = std::string("/proc/") + pid + "/stat";
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return std::nullopt;
  char text[512];
  const ssize_t count = ::read(file.get(), text, sizeof(text) - 1);
  if (count <= 0) return std::nullopt;
  text[count] = 0;
  const char* rest = std::strrchr(text, ')');
  ProcessEntry entry;
  entry.pid = std::atoi(pid);
  if (rest == nullptr ||
      std::sscanf(rest + 1, " %c %d %d", &entry.state, &entry.parent, &entry.group) != 3) {
    return std::nullopt;
  }
  return entry;
}

// Some process of the group that has not ended; 0 where there is none.
pid_t running_member(pid_t group) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc"), ::closedir);
  if (!directory) return group;  // cannot tell: suppose the worst
  while (const dirent* item = ::readdir(directory.get())) {
    if (item->d_name[0] < '1' || item->d_name[0] > '9') continue;
    const auto entry = read_entry(item->d_name);
    if (entry && entry->group == group && entry->state != 'Z' && entry->state != 'X') {
      return entry->pid;
    }
  }
  return 0;
}

class GroupKiller : public std::enable_shared_from_this<GroupKiller> {
 public:
  GroupKiller(net::EventLoop& loop, pid_t group, Deadline deadline,
              std::function<void(Status)> done)
      : loop_(loop), group_(group), deadline_(deadline), done_(std::move(done)) {}

  void step() {
    (void)kill_group(group_, SIGKILL);
    if (group_is_empty(group_)) return done_(Status());
    if (deadline_.passed(loop_.clock().now())) {
      return done_(error(Code::kDeadlineExceeded,
                         "process {} of group {} was killed and does not end",
                         running_member(group_), group_));
    }
    loop_.call_after(pause_, [self = shared_from_this()] { self->step(); });
    pause_ = std::min<Duration>(2 * pause_, kPollMost);
  }

 private:
  net::EventLoop& loop_;
  const pid_t group_;
  const Deadline deadline_;
  const std::function<void(Status)> done_;
  Duration pause_ = kPollFirst;
};

}  // namespace

void watch_exit(net::EventLoop& loop, const Child& child,
                std::function<void(wire::ExitStatus)> done) {
  const int pidfd = child.pidfd.get();
  TROUPE_CHECK(pidfd >= 0);
  loop.watch_readable(pidfd, [&loop, pidfd, done = std::move(done)] {
    const auto status = reap(pidfd);
    if (!status) return;
    loop.unwatch(pidfd);
    done(*status);
  });
}

void stop_watching(net::EventLoop& loop, const Child& child) { loop.unwatch(child.pidfd.get()); }

Result<wire::ExitStatus> wait(const Child& child, Deadline deadline) {
  while (true) {
    pollfd waiting{child.pidfd.get(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    const auto left_ms = std::min<std::int64_t>(left.count(), 1'000'000'000);
    const int ready = ::poll(&waiting, 1, static_cast<int>(left_ms));
    if (ready < 0 && errno != EINTR) return errno_status(errno, "wait for", "a process");
    if (ready > 0) {
      if (const auto status = reap(child.pidfd.get())) return *status;
    }
    if (deadline.passed()) {
      return error(Code::kDeadlineExceeded, "process {} still runs", child.pid);
    }
  }
}

Status kill_group(pid_t group, int signal) {
  TROUPE_CHECK(group > 1, "group {} is not one of ours", group);
  if (::kill(-group, signal) == 0) return {};
  if (errno == ESRCH) return error(Code::kNotFound, "no process of group {} is left", group);
  return errno_status(errno, "signal process group", std::to_string(group));
}

bool group_is_empty(pid_t group) {
  TROUPE_CHECK(group > 1, "group {} is not one of ours", group);
  if (::kill(-group, 0) != 0 && errno == ESRCH) return true;
  return running_member(group) == 0;
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc"), ::closedir);
  while (const dirent* item = directory ? ::readdir(directory.get()) : nullptr) {
    if (item->d_name[0] < '1' || item->d_name[0] > '9') continue;
    const auto entry = read_entry(item->d_name);
    if (entry && entry->parent == parent) children.push_back(entry->pid);
  }
  return children;
}

void kill_group_until_empty(net::EventLoop& loop, pid_t group, Deadline deadline,
                            std::function<void(Status)> done) {
  std::make_shared<GroupKiller>(loop, group, deadline, std::move(done))->step();
}

}  // namespace troupe::process
