// What `troupe plan` says of a GPU's memory, against what a run takes of it.

#include <fmt/format.h>

#include <cmath>

#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/check.h"
#include "tools/gpu_check/program_runs.h"
#include "train/cuda/device/memory_ledger.h"

namespace troupe::tools::gpu {
namespace {

// The plan's parts that serve a purpose of the run's.
struct PlanPart {
  train::MemoryPurpose purpose;
  std::vector<const char*> planned;
};
const std::vector<PlanPart>& plan_parts() {
  using train::MemoryPurpose;
  static const std::vector<PlanPart> all = {
      {MemoryPurpose::kParameters, {"parameters"}},
      {MemoryPurpose::kGradients, {"gradients"}},
      {MemoryPurpose::kOptimizerState, {"optimizer"}},
      {MemoryPurpose::kActivations, {"activations"}},
      {MemoryPurpose::kWorkspace, {"workspaces"}},
      {MemoryPurpose::kCommunication, {"gathered", "reduction", "communication"}}};
  return all;
}

struct PlanCompared {
  double difference = 0;  // of what was measured
  std::string text;
};

// A real device is asked what it had taken. In a rehearsal the granules are larger than the model:
// what the run held by purpose is compared.
Result<PlanCompared> compare_plan(const json::Value& plan,
                                  const std::vector<train::NamedBytes>& held,
                                  std::int64_t in_use_before, bool rehearsal) {
  const json::Value* planned = json::find(plan, "per_gpu_bytes");
  if (!planned) return error(Code::kDataLoss, "`troupe plan --json` says nothing of a GPU");
  std::string text;
  std::int64_t sum = 0;
  for (const PlanPart& part : plan_parts()) {
    std::int64_t expected = 0;
    for (const char* name : part.planned)
      expected += json::find_integer(*planned, name).value_or(0);
    const std::string name(train::memory_purpose_name(part.purpose));
    const std::int64_t there = bytes_of(held, name);
    sum += there;
    text += fmt::format("{} {} of {}, ", name, train::memory_size_text(expected),
                        train::memory_size_text(there));
  }
  const std::int64_t total = json::find_integer(*planned, "total").value_or(0);
  const std::int64_t device = bytes_of(held, train::kDeviceInUse) - in_use_before;
  const std::int64_t measured = rehearsal ? sum : device;
  if (measured <= 0 || total <= 0)
    return error(Code::kDataLoss, "{} bytes are planned, {} measured", total, measured);
  return PlanCompared{
      .difference = std::abs(static_cast<double>(total - measured)) / static_cast<double>(measured),
      .text = text + fmt::format("granules and timing {}; together {} of {}, the device says {}",
                                 train::memory_size_text(bytes_of(held, "other")),
                                 train::memory_size_text(total), train::memory_size_text(sum),
                                 train::memory_size_text(device))};
}

Check plan_check(const std::string& name, const RateShape& shape, double seconds) {
  return {.name = "plan/peak " + name,
          .what =
              "`troupe plan` against the most that a run takes of the device, driver and context "
              "included: bf16, ddp, with activation checkpointing and without",
          .seconds = seconds,
          .run = [shape](Bench& bench) -> Result<Figure> {
            const Runs runs = TROUPE_TRY(Runs::create(bench));
            Figure figure{.unit = "of the peak", .bar = Figure::Bar::kAtMost, .bar_value = 0.05};
            // The first is the run of program/rate.
            for (const auto& [checkpointing, settings] :
                 {std::pair{"none", std::string(kFastSettings)},
                  {"full", std::string("troupe.deterministic: off\n")}}) {
              const RunSpec spec = rate_spec(bench, shape, settings);
              const RunRate run = TROUPE_TRY(runs.rate(spec));
              const json::Value plan = TROUPE_TRY(runs.plan("plan", spec));
              const PlanCompared found = TROUPE_TRY(
                  compare_plan(plan, run.device_bytes, run.in_use_before, bench.rehearsal()));
              figure.value = std::max(figure.value, found.difference);
              figure.text +=
                  fmt::format("{}checkpointing {}: {:.1f} %: {}", figure.text.empty() ? "" : "; ",
                              checkpointing, 100 * found.difference, found.text);
            }
            return figure;
          }};
}

}  // namespace

void add_plan_checks(std::vector<Check>& checks) {
  checks.push_back(plan_check("Qwen2.5-0.5B", kRateHalfB, 12));
  checks.push_back(plan_check("Qwen2.5-1.5B", kRate1B, 18));
}

}  // namespace troupe::tools::gpu
