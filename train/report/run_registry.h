#pragma once
// Where runs of this user are: a file for each in ~/.troupe/runs, written by the driver when a run
// starts and again when it ends. For `troupe why RUN` and `troupe stop RUN`.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"

namespace troupe::train {

// Of the registry, below ~/.troupe.
inline constexpr const char* kRunsDirectory = "runs";

struct RunRecord {
  std::string run;         // its id
  std::string output_dir;  // absolute
  std::string config;      // the configuration file, absolute; empty: flags alone
  std::string log;         // of a run without a terminal; empty: it has one
  // The driver's process. Home directories are shared: the pid is of this machine, and the start
  // tells the process from a later one of the same number.
  std::string host_name;
  std::int64_t pid = 0;
  std::int64_t process_start = 0;  // process_start_ticks()
  std::int64_t started_unix_us = 0;
  // Of a run that ended.
  std::int64_t ended_unix_us = 0;  // 0: it has not
  Status end;
  std::int64_t last_step = 0;

  bool ended() const { return ended_unix_us > 0; }
  friend bool operator==(const RunRecord&, const RunRecord&) = default;
};

// Whether the run's process is there, as far as this machine can tell.
enum class DriverState { kUnknown, kRuns, kGone };
DriverState driver_state(FileSystem& files, const RunRecord& record, const std::string& host_name);

// When a process of this machine began, in clock ticks since the machine's start (proc(5)); 0 where
// there is no such process, or where it has ended and was not waited for.
std::int64_t process_start_ticks(FileSystem& files, std::int64_t pid);

// As notes name files: from the root, without "." and "..", and without a slash at the end.
std::string absolute_path(const std::string& path);

class RunRegistry {
 public:
  // So many are kept; the oldest go.
  static constexpr std::size_t kRunsMax = 200;

  // `directory`: ~/.troupe/runs; made when it is needed. `files` outlives the registry.
  RunRegistry(FileSystem& files, std::string directory)
      : files_(files), directory_(std::move(directory)) {}

  // Writes the run's file, whole or not at all.
  Status write(const RunRecord& record);
  // Newest first. Files that are none of ours are passed over.
  Result<std::vector<RunRecord>> list();
  // The run of this id, with or without its "run-". kNotFound names the newest ones.
  Result<RunRecord> find(const std::string& run);
  // As people name a run: a folder that is there is its output directory, anything else its id.
  Result<RunRecord> find_named(const std::string& name);
  // Asks the driver of a run, which looks for it, to write its finished model to `folder`.
  Status ask_to_save(const std::string& run, const std::string& folder);
  // The driver's end of it; takes it away.
  std::optional<std::string> take_save_wish(const std::string& run);
  // The newest run with this output directory (absolute), where there is one.
  Result<std::optional<RunRecord>> find_output(const std::string& output_dir);

 private:
  void remove_oldest();
  std::string wish_path(const std::string& run) const;

  FileSystem& files_;
  std::string directory_;
};

}  // namespace troupe::train
