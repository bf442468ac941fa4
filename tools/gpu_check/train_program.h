#pragma once
// Runs of `troupe train` in folders of their own, as a user starts them.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "runtime/process/child.h"
#include "train/report/run_event.h"
#include "train/report/step_log.h"

namespace troupe::tools::gpu {

// A folder under the system's for temporary files that goes with the object.
class WorkFolder {
 public:
  static Result<WorkFolder> create();
  WorkFolder(WorkFolder&& other) noexcept;
  WorkFolder& operator=(WorkFolder&&) = delete;
  ~WorkFolder();
  const std::string& path() const { return path_; }

 private:
  explicit WorkFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// What a run is made of. Its data are texts of words that follow each other by a rule; there is no
// tokenizer, one of few words is trained.
struct RunSpec {
  std::string model;     // text of config.json
  std::string settings;  // lines of YAML; besides what every run has
  int steps = 8;
  std::string device = "cuda";  // troupe.device
};

// One run. Whatever it started ends with the object.
class TrainProgram {
 public:
  // Writes the run's files. Gives their folder.
  static Result<std::string> lay_out(const std::string& folder, const std::string& name,
                                     const RunSpec& spec);
  // `program`: the path of `troupe`. `environment`: what its processes get beside this one's.
  // `folder` must outlive the object; `name` is the run's folder in it.
  static Result<TrainProgram> start(const std::string& program,
                                    std::map<std::string, std::string> environment,
                                    const std::string& folder, const std::string& name,
                                    const RunSpec& spec);
  // What `troupe plan --json` says of such a run. As start(), in `name`'s folder.
  static Result<std::string> planned(const std::string& program,
                                     std::map<std::string, std::string> environment,
                                     const std::string& folder, const std::string& name,
                                     const RunSpec& spec, Duration limit);
  TrainProgram(TrainProgram&& other) noexcept
      : folder_(std::move(other.folder_)), child_(std::exchange(other.child_, std::nullopt)) {}
  TrainProgram& operator=(TrainProgram&&) = delete;
  ~TrainProgram();

  // Until it has ended, well: else an error with the last lines that it wrote.
  Status wait(Duration limit);
  // Until so many steps are in its log; kDeadlineExceeded, or as wait() where it ends before.
  Status wait_steps(std::int64_t steps, Duration limit);
  // Until `text` stands in a file of its output folder; errors as those of wait_steps().
  Status wait_text(const std::string& file, const std::string& text, Duration limit);
  // SIGKILL to the process that began with this rank. kNotFound: there is none.
  Status kill_rank(int rank) const;
  Result<std::vector<train::StepRecord>> steps() const;
  Result<std::vector<train::RunEvent>> events() const;
  // The weights that it left: a hash of the file.
  Result<std::uint64_t> weights_hash() const;
  std::string output_folder() const { return folder_ + "/output"; }

 private:
  TrainProgram(std::string folder, process::Child child)
      : folder_(std::move(folder)), child_(std::move(child)) {}
  Status failure(const std::string& what) const;
  Status wait_until(const std::string& what, const std::function<bool()>& done, Duration limit);
  std::string folder_;
  std::optional<process::Child> child_;
};

// Text of config.json by shape.
struct LlamaShape {
  std::int64_t hidden, inner, layers, heads, key_heads, vocabulary, positions;
  bool tied = true;
  bool qwen2 = false;  // with biases of queries, keys and values
};
std::string config_text(const LlamaShape& shape);

}  // namespace troupe::tools::gpu
