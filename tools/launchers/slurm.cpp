#include "tools/launchers/slurm.h"

#include <fmt/format.h>

#include <numeric>

#include "runtime/base/file_system.h"
#include "runtime/base/suggest.h"
#include "runtime/base/text.h"

namespace troupe::tools {
namespace {

constexpr std::size_t kNodesMax = 1 << 16;
constexpr int kNumberMax = 999'999'999;  // of nodes' names and counts
constexpr std::size_t kDigitsMax = 32;
constexpr int kPortsBegin = 20000;
constexpr int kPortsCount = 10000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::optional<int> whole_number(std::string_view text) {
  const auto number = parse_integer<int>(text);
  return number && *number >= 0 && *number <= kNumberMax ? number : std::nullopt;
}

// Reads a text from its beginning, and knows where it is.
class Reader {
 public:
  Reader(const char* what, std::string_view text) : what_(what), text_(text) {}
  bool done() const { return at_ == text_.size(); }
  char next() const { return done() ? '\0' : text_[at_]; }
  bool take(char c) {
    if (done() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take_text(std::string_view text) {
    if (!text_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  std::string_view until(std::string_view stops) {
    const std::size_t end = std::min(text_.find_first_of(stops, at_), text_.size());
    return text_.substr(std::exchange(at_, end), end - at_);
  }
  std::string_view digits() {
    const std::size_t begin = at_;
    while (!done() && is_digit(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  Status wrong(std::string_view expected) const {
    return error(Code::kInvalidArgument, "the {} '{}' at position {}: {} expected", what_, text_,
                 at_ + 1, expected);
  }

 private:
  const char* what_;
  std::string_view text_;
  std::size_t at_ = 0;
};

// What stands between '[' and ']': "01-04,7".
Result<std::vector<std::string>> ranges(Reader& reader) {
  std::vector<std::string> numbers;
  do {
    const std::string first(reader.digits());
    const auto begin = whole_number(first);
    if (!begin || first.size() > kDigitsMax) return reader.wrong("a number");
    auto end = begin;
    if (reader.take('-')) {
      end = whole_number(reader.digits());
      if (!end || *end < *begin) return reader.wrong(fmt::format("a number from {} on", first));
    }
    if (numbers.size() + static_cast<std::size_t>(*end - *begin) >= kNodesMax) {
      return reader.wrong(fmt::format("at most {} nodes", kNodesMax));
    }
    for (int number = *begin; number <= *end; ++number) {
      numbers.push_back(fmt::format("{:0{}}", number, first.size()));
    }
  } while (reader.take(','));
  if (!reader.take(']')) return reader.wrong("',' or ']'");
  return numbers;
}

Result<std::vector<std::string>> item(Reader& reader) {
  std::vector<std::string> names{std::string(reader.until(",[]"))};
  while (reader.take('[')) {
    const auto numbers = TROUPE_TRY(ranges(reader));
    const std::string suffix(reader.until(",[]"));
    if (names.size() * numbers.size() > kNodesMax) {
      return reader.wrong(fmt::format("at most {} nodes", kNodesMax));
    }
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& number : numbers) longer.push_back(name + number + suffix);
    }
    names = std::move(longer);
  }
  if (names.front().empty()) return reader.wrong("a node's name");
  return names;
}

// The value of the step's variable, else the job's.
std::string first_of(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto value = environment.get(name); value && !value->empty()) return *value;
  }
  return {};
}

Result<int> number_in(const Environment& environment, const char* name) {
  const auto text = environment.get(name).value_or("");
  if (const auto number = whole_number(text)) return *number;
  return error(Code::kInvalidArgument, "SLURM's variable {} is '{}', and should be a number", name,
               text);
}

}  // namespace

Result<std::vector<std::string>> parse_node_list(std::string_view text) {
  Reader reader("node list", text);
  std::vector<std::string> nodes;
  do {
    for (auto& name : TROUPE_TRY(item(reader))) nodes.push_back(std::move(name));
    if (nodes.size() > kNodesMax) return reader.wrong(fmt::format("at most {} nodes", kNodesMax));
  } while (reader.take(','));
  if (!reader.done()) return reader.wrong("',' or the end");
  return nodes;
}

Result<std::vector<int>> parse_tasks_per_node(std::string_view text) {
  Reader reader("tasks per node", text);
  std::vector<int> tasks;
  do {
    const auto count = whole_number(reader.digits());
    if (!count || *count == 0) return reader.wrong("a number of tasks");
    int times = 1;
    if (reader.take_text("(x")) {
      const auto given = whole_number(reader.digits());
      if (!given || *given == 0 || tasks.size() + static_cast<std::size_t>(*given) > kNodesMax) {
        return reader.wrong("a number of nodes");
      }
      times = *given;
      if (!reader.take(')')) return reader.wrong("')'");
    }
    tasks.insert(tasks.end(), static_cast<std::size_t>(times), *count);
  } while (reader.take(','));
  if (!reader.done()) return reader.wrong("',', '(x' or the end");
  return tasks;
}

int SlurmTask::port() const {
  std::uint32_t hash = 2166136261u;  // FNV-1a: every task must find the same
  for (const char c : step) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return kPortsBegin + static_cast<int>(hash % kPortsCount);
}

bool in_slurm_step(const Environment& environment) {
  return !first_of(environment, {"SLURM_JOB_ID", "SLURM_JOBID"}).empty() &&
         !first_of(environment, {"SLURM_STEP_ID", "SLURM_STEPID"}).empty() &&
         !first_of(environment, {"SLURM_STEP_NODELIST"}).empty() &&
         environment.get("SLURM_PROCID").has_value();
}

Result<std::optional<SlurmTask>> read_slurm_task(const Environment& environment) {
  if (!in_slurm_step(environment)) return std::optional<SlurmTask>();
  const std::string job = first_of(environment, {"SLURM_JOB_ID", "SLURM_JOBID"});
  const std::string step = first_of(environment, {"SLURM_STEP_ID", "SLURM_STEPID"});
  const std::string list = first_of(environment, {"SLURM_STEP_NODELIST"});
  SlurmTask task;
  task.step = fmt::format("{}.{}", job, step);
  if (const auto restarts = environment.get("SLURM_RESTART_COUNT"); restarts && *restarts != "0") {
    task.step += "." + *restarts;
  }
  task.nodes = TROUPE_TRY(parse_node_list(list));
  task.tasks = TROUPE_TRY(parse_tasks_per_node(
      first_of(environment, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})));
  if (task.tasks.size() != task.nodes.size()) {
    return error(Code::kInvalidArgument,
                 "SLURM_STEP_NODELIST={} names {} nodes, and SLURM_STEP_TASKS_PER_NODE counts {}",
                 list, task.nodes.size(), task.tasks.size());
  }
  const std::int64_t sum = std::accumulate(task.tasks.begin(), task.tasks.end(), std::int64_t{0});
  if (environment.get("SLURM_STEP_NUM_TASKS") &&
      TROUPE_TRY(number_in(environment, "SLURM_STEP_NUM_TASKS")) != sum) {
    return error(Code::kInvalidArgument,
                 "SLURM_STEP_NUM_TASKS is {}, and SLURM_STEP_TASKS_PER_NODE adds up to {}",
                 environment.get("SLURM_STEP_NUM_TASKS").value_or(""), sum);
  }
  if (sum == 1) return std::optional<SlurmTask>();
  task.node = TROUPE_TRY(number_in(environment, "SLURM_NODEID"));
  task.local_id = TROUPE_TRY(number_in(environment, "SLURM_LOCALID"));
  if (task.node >= task.nodes_count()) {
    return error(Code::kInvalidArgument, "SLURM_NODEID is {}, and the step has {} nodes", task.node,
                 task.nodes_count());
  }
  task.submit_dir = first_of(environment, {"SLURM_SUBMIT_DIR"});
  return std::optional(std::move(task));
}

std::string slurm_token_file(const SlurmTask& task) {
  return join_path(task.submit_dir, ".troupe-" + task.step);
}

std::string expanded_node_rank(const SlurmTask& task, int given, int nodes) {
  if (given == task.node || given != 0 || nodes != task.nodes_count()) return {};
  return fmt::format(
      "node rank 0 was given on node {0} of the SLURM step: the batch script's shell expanded "
      "$SLURM_NODEID, which is 0 there, before srun did (write srun bash -c '…' with single "
      "quotes); it is taken as {0}",
      task.node);
}

}  // namespace troupe::tools
