#pragma once
// The report of ranks that have failed: the file that a rank's `@record` writes, and torchrun's
// summary (torch/distributed/elastic/multiprocessing/errors).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::tools {

// The content of error.json.
struct RecordedError {
  std::string message;
  std::optional<std::int64_t> timestamp_s;  // Unix time
};
// Nothing where the text is no such file.
std::optional<RecordedError> parse_error_file(std::string_view text);

struct FailedRank {
  int rank = 0;
  int local_rank = 0;
  std::string host;
  std::int64_t pid = 0;
  int exit_code = 0;  // where signal is 0
  int signal = 0;
  std::int64_t unix_s = 0;  // when it failed: the file's time, else when its end was seen
  std::string error_file;   // empty: it wrote none
  std::string traceback;    // of that file
  std::string death;        // why, where nobody saw its process end: its node was lost
  bool started = true;      // else `death` says why its process never ran
  std::string last_lines;   // of its standard error, each with its end

  // As Python shows it: the negated number of a signal.
  int shown_exit_code() const { return signal != 0 ? -signal : exit_code; }
};

// The index of the failure that came first: the smallest time that a rank itself recorded, else the
// first in the list, which is in the order in which ends were seen.
std::size_t root_cause(const std::vector<FailedRank>& failed);

// "ranks 0, 2 could not be started: …", with the reasons of all, each once; nothing where one of
// them ran.
std::optional<std::string> start_failure(const std::vector<FailedRank>& failed);

// torchrun's block, with the root cause's last lines before it, but for a traceback among them that
// the block shows from its file. `name`: of the script.
std::string failure_report(const std::string& name, const std::vector<FailedRank>& failed);

}  // namespace troupe::tools
