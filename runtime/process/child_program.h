#pragma once
// A program as a child, with its output in a file: what chaos commands and clusters of tests start.

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/process/spawn.h"

namespace troupe::process {

struct ChildOptions {
  std::string program;                 // a path; empty: this program again
  std::vector<std::string> arguments;  // without the program's name
  std::map<std::string, std::string> environment;
  std::string output_path;  // of standard output and standard error
};

// A process in a group of its own. It ends with this object and, by the kernel, with the thread
// that started it. One thread at a time.
class ChildProgram {
 public:
  static Result<std::unique_ptr<ChildProgram>> start(const ChildOptions& options);
  ~ChildProgram();  // SIGKILL to its group
  ChildProgram(const ChildProgram&) = delete;
  ChildProgram& operator=(const ChildProgram&) = delete;

  pid_t pid() const { return child_.pid; }
  // Its end: the exit code, 128 + signal where a signal ended it. kDeadlineExceeded: it runs.
  Result<int> wait(Deadline deadline);
  bool ended() const { return ended_; }
  // To the process alone, not to its group. Nothing where it has ended.
  void signal(int signal);

 private:
  explicit ChildProgram(Child child) : child_(std::move(child)) {}
  Child child_;
  bool ended_ = false;
  int exit_code_ = 0;
};

// The launchers' variables, emptied: those of this command's own surroundings must not reach the
// programs that it starts. With HOME and TMPDIR under `home`.
std::map<std::string, std::string> own_environment(const std::string& home);

// A folder under `parent` with a name that nobody else has, readable by this user alone.
Result<std::string> make_folder(const std::string& parent, const std::string& prefix);

}  // namespace troupe::process
