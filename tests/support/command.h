#pragma once
// Programs as a user runs them: start, read their output, wait with a deadline.

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace troupe::tests {

struct CommandResult {
  int exit_code = -1;  // 128 + signal where a signal ended it
  std::string out;
  std::string err;
  bool timed_out = false;  // it was killed, with its process group
};

struct CommandOptions {
  std::chrono::seconds timeout{60};
  std::map<std::string, std::string> environment;  // besides the test's own
  std::string directory;                           // to run in; empty: the test's own
  std::string input;                               // its standard input
};

// Runs argv[0] (a path, or looked up in PATH) to its end.
CommandResult run_command(const std::vector<std::string>& argv, const CommandOptions& options = {});

// A program that runs beside the test; killed with its process group by the destructor.
class BackgroundCommand {
 public:
  BackgroundCommand(const std::vector<std::string>& argv, const CommandOptions& options = {});
  ~BackgroundCommand();
  BackgroundCommand(const BackgroundCommand&) = delete;
  BackgroundCommand& operator=(const BackgroundCommand&) = delete;

  pid_t pid() const { return pid_; }
  // Reads on until its output (standard output and standard error together) contains `text` behind
  // its first `from` bytes, the program ends or the time passes. Returns whether the text was seen.
  bool wait_for_output(const std::string& text, std::chrono::seconds timeout, std::size_t from = 0);
  // What it wrote so far.
  const std::string& output() const { return output_; }
  void kill(int signal);
  // Waits for its end; exit code as in CommandResult, -1 where it does not come.
  int wait(std::chrono::seconds timeout);

 private:
  bool read_some(std::chrono::steady_clock::time_point until);
  pid_t pid_ = -1;
  int pidfd_ = -1;
  int output_fd_ = -1;
  std::string output_;
  int exit_code_ = -1;
};

// A process's arguments with spaces between them; empty where it has gone, even while it is read.
std::string command_line_of(pid_t pid);
// Processes whose command line contains `text`, besides the caller's own.
std::vector<pid_t> processes_with(const std::string& text);

}  // namespace troupe::tests
