#include "tools/commands/run_result.h"

#include <algorithm>

#include "runtime/base/hash.h"
#include "train/report/step_log.h"

namespace troupe::tools {
namespace {

constexpr std::uint64_t kStepsBytesMax = 256u << 20;

bool is_weights(const std::string& name) {
  return (name.starts_with("model") || name.starts_with("adapter_model")) &&
         name.ends_with(".safetensors");
}

}  // namespace

Result<TrainedRun> read_trained_run(FileSystem& files, const std::string& output_dir) {
  TrainedRun run;
  std::string hashes;
  for (const auto& entry : TROUPE_TRY(files.list(output_dir))) {
    if (!is_weights(entry.name)) continue;
    const auto mapped = TROUPE_TRY(files.map(join_path(output_dir, entry.name)));
    hashes += entry.name + " " + to_hex(sha256(mapped->bytes())) + "\n";
  }
  if (hashes.empty()) return error(Code::kNotFound, "no final model in {}", output_dir);
  run.weights_sha256 = to_hex(sha256(bytes_of(hashes)));
  const auto text =
      TROUPE_TRY(files.read(join_path(output_dir, train::kStepsFile), kStepsBytesMax));
  run.steps = train::strip_timings(text);
  run.step_count = std::count(run.steps.begin(), run.steps.end(), '\n');
  const std::string events = join_path(output_dir, train::kEventsFile);
  if (files.exists(events)) run.events = TROUPE_TRY(train::read_events(files, events)).events;
  run.recoveries = train::recoveries_of(run.events);
  return run;
}

std::optional<std::string> difference(const TrainedRun& run, const TrainedRun& expected) {
  if (run.steps != expected.steps) {
    return run.step_count == expected.step_count
               ? std::string("losses or norms of its steps differ")
               : fmt::format("steps.jsonl has {} steps, not {}", run.step_count,
                             expected.step_count);
  }
  if (run.weights_sha256 != expected.weights_sha256) return std::string("the weights differ");
  return std::nullopt;
}

}  // namespace troupe::tools
