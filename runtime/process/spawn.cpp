#include "runtime/process/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "runtime/base/check.h"
#include "runtime/base/file_system.h"
#include "runtime/base/signal_block.h"

// glibc's clone() under the name that sanitizers do not intercept: they take any clone for a fork
// and then mistrust this process as if it were the forked one.
extern "C" int __clone(int (*function)(void*), void* stack, int flags, void* argument, ...);

namespace troupe::process {
namespace {

constexpr std::size_t kStackBytes = 64u << 10;

// Everything that the new process needs, made before it exists: it shares our memory and must not
// allocate, lock or call into libraries.
struct Plan {
  const char* path = nullptr;
  int executable_fd = -1;
  char* const* argv = nullptr;
  char* const* environment = nullptr;
  DescriptorMapping* descriptors = nullptr;
  std::size_t descriptor_count = 0;
  int descriptor_floor = 0;  // above every number that is mapped to
  const char* working_directory = nullptr;
  bool new_process_group = false;
  bool new_session = false;
  int parent_death_signal = 0;
  pid_t parent = 0;
  // Written by the new process.
  int error = 0;
  const char* step = nullptr;
};

// Straight to the kernel: no interposed function, no lock, no per-thread state but errno, which is
// ours to lose while this thread waits.
#define TROUPE_CHILD __attribute__((no_sanitize("address", "thread", "undefined")))

TROUPE_CHILD int give_up(Plan* plan, const char* step) {
  plan->error = errno;
  plan->step = step;
  ::syscall(SYS_exit, 127);
  return 127;
}

// Handlers of ours must not run over there, in our memory.
TROUPE_CHILD void reset_signals() {
  struct {
    void* handler = nullptr;  // SIG_DFL
    unsigned long flags = 0;
    void* restorer = nullptr;
    unsigned long mask = 0;
  } standard;
  for (int signal = 1; signal <= 64; ++signal) {
    ::syscall(SYS_rt_sigaction, signal, &standard, nullptr, sizeof(standard.mask));
  }
  const unsigned long none = 0;
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, sizeof(none));
}

// Out of the way of each other first, then to their places.
TROUPE_CHILD bool place_descriptors(Plan* plan) {
  ::syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
  if (plan->executable_fd >= 0) {
    plan->executable_fd = static_cast<int>(
        ::syscall(SYS_fcntl, plan->executable_fd, F_DUPFD_CLOEXEC, plan->descriptor_floor));
    if (plan->executable_fd < 0) return false;
  }
  for (std::size_t i = 0; i < plan->descriptor_count; ++i) {
    DescriptorMapping& mapping = plan->descriptors[i];
    mapping.parent = static_cast<int>(
        ::syscall(SYS_fcntl, mapping.parent, F_DUPFD_CLOEXEC, plan->descriptor_floor));
    if (mapping.parent < 0) return false;
  }
  for (std::size_t i = 0; i < plan->descriptor_count; ++i) {
    const DescriptorMapping& mapping = plan->descriptors[i];
    if (::syscall(SYS_dup3, mapping.parent, mapping.child, 0) < 0) return false;
  }
  return true;
}

TROUPE_CHILD int run_child(void* argument) {
  Plan* plan = static_cast<Plan*>(argument);
  if (plan->new_session) {
    if (::syscall(SYS_setsid) < 0) return give_up(plan, "make a session for");
  } else if (plan->new_process_group && ::syscall(SYS_setpgid, 0, 0) != 0) {
    return give_up(plan, "make a process group for");
  }
  if (plan->parent_death_signal != 0) {
    ::syscall(SYS_prctl, PR_SET_PDEATHSIG, plan->parent_death_signal, 0, 0, 0);
    // It ended before the kernel knew that we care.
    if (::syscall(SYS_getppid) != plan->parent) return give_up(plan, "find the parent of");
  }
  if (plan->working_directory != nullptr && ::syscall(SYS_chdir, plan->working_directory) != 0) {
    return give_up(plan, "enter the working directory of");
  }
  if (!place_descriptors(plan)) return give_up(plan, "pass the descriptors to");
  reset_signals();
  if (plan->executable_fd >= 0) {
    ::syscall(SYS_execveat, plan->executable_fd, "", plan->argv, plan->environment, AT_EMPTY_PATH);
  } else {
    ::syscall(SYS_execve, plan->path, plan->argv, plan->environment);
  }
  return give_up(plan, "start");
}

std::vector<std::string> environment_of(const SpawnOptions& options) {
  std::vector<std::string> result;
  for (char** item = options.inherit_environment ? environ : nullptr; item && *item; ++item) {
    const std::string_view text(*item);
    const std::string name(text.substr(0, text.find('=')));
    if (!options.environment.contains(name)) result.emplace_back(text);
  }
  for (const auto& [name, value] : options.environment) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// A stack for the new process, with nothing below it that it could run into.
class Stack {
 public:
  Stack()
      : memory_(::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0)) {}
  ~Stack() {
    if (valid()) ::munmap(memory_, kStackBytes);
  }
  bool valid() const { return memory_ != MAP_FAILED; }
  void* top() const { return static_cast<char*>(memory_) + kStackBytes; }

 private:
  void* memory_;
};

Status check_options(const SpawnOptions& options) {
  if (options.argv.empty()) {
    return error(Code::kInvalidArgument, "argv of {} is empty", options.path);
  }
  for (const auto& [name, value] : options.environment) {
    if (name.empty() || name.find('=') != std::string::npos) {
      return error(Code::kInvalidArgument, "'{}' cannot be an environment variable's name", name);
    }
  }
  for (const DescriptorMapping& mapping : options.descriptors) {
    if (mapping.parent < 0 || mapping.child < 0) {
      return error(Code::kInvalidArgument, "cannot pass descriptor {} as {} to {}", mapping.parent,
                   mapping.child, options.path);
    }
  }
  return {};
}

}  // namespace

Result<Child> spawn(const SpawnOptions& options) {
  TROUPE_RETURN_IF_ERROR(check_options(options));
  auto argv_text = options.argv;
  auto argv = pointers_to(argv_text);
  auto environment_text = environment_of(options);
  auto environment = pointers_to(environment_text);
  auto descriptors = options.descriptors;

  Plan plan;
  plan.path = options.path.c_str();
  plan.executable_fd = options.executable_fd;
  plan.argv = argv.data();
  plan.environment = environment.data();
  plan.descriptors = descriptors.data();
  plan.descriptor_count = descriptors.size();
  plan.descriptor_floor = 3;
  for (const DescriptorMapping& mapping : descriptors) {
    plan.descriptor_floor = std::max(plan.descriptor_floor, mapping.child + 1);
  }
  if (!options.working_directory.empty())
    plan.working_directory = options.working_directory.c_str();
  plan.new_process_group = options.new_process_group;
  plan.new_session = options.new_session;
  plan.parent_death_signal = options.parent_death_signal;
  plan.parent = ::getpid();

  const Stack stack;
  if (!stack.valid()) return errno_status(errno, "start", options.path);
  int pidfd = -1;
  pid_t pid;
  int clone_error = 0;
  {
    const SignalBlock block;
    pid = ::__clone(run_child, stack.top(), CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, &plan,
                    &pidfd);
    clone_error = errno;
  }
  if (pid < 0) return errno_status(clone_error, "start", options.path);
  Child child{.pid = pid, .pidfd = UniqueFd(pidfd)};
  if (plan.error == 0) return child;

  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED) != 0 && errno == EINTR) {
  }
  return errno_status(plan.error, plan.step, options.path)
      .with("working directory", options.working_directory);
}

}  // namespace troupe::process
