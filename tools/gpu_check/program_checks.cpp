// `troupe train` on the GPU, as its users run it: losses beside the CPU's, ranks that share the
// GPU, a killed rank, the rate of real models' shapes.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/check.h"
#include "tools/gpu_check/program_runs.h"
#include "train/cuda/device/memory_ledger.h"
#include "train/sharding/memory_plan.h"

namespace troupe::tools::gpu {
namespace {

// Largest relative difference of two runs' losses.
Result<double> loss_difference(const TrainProgram& a, const TrainProgram& b) {
  const auto left = TROUPE_TRY(a.steps()), right = TROUPE_TRY(b.steps());
  if (left.size() != right.size() || left.empty())
    return error(Code::kDataLoss, "{} steps beside {}", left.size(), right.size());
  double worst = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    const double difference = std::abs(left[i].loss - right[i].loss) / std::abs(right[i].loss);
    worst = std::max(worst, std::isfinite(difference) ? difference : 1e30);
  }
  return worst;
}

Check loss_check(bool bf16) {
  return {.name = fmt::format("program/losses {}", bf16 ? "bf16" : "f32"),
          .what = "losses of `troupe train` on the GPU against the same run on the CPU",
          .seconds = 6,
          .run = [bf16](Bench& bench) -> Result<Figure> {
            const Runs runs = TROUPE_TRY(Runs::create(bench));
            RunSpec spec{.model = config_text(kSmallShape),
                         .settings = small_settings(1, "ddp", bf16)};
            const TrainProgram gpu = TROUPE_TRY(runs.run("gpu", spec));
            spec.device = "cpu";
            const TrainProgram cpu = TROUPE_TRY(runs.run("cpu", spec));
            return Figure{.value = TROUPE_TRY(loss_difference(gpu, cpu)),
                          .unit = "of the loss",
                          .bar = Figure::Bar::kAtMost,
                          .bar_value = bf16 ? 2e-2 : 1e-4,
                          .text = fmt::format("over {} steps, the worst", spec.steps)};
          }};
}

Check strategies_check(int workers) {
  return {
      .name = fmt::format("program/{} ranks on one GPU", workers),
      .what = "every strategy: equal weights, and the losses of one rank",
      .seconds = 4.0 + 4.0 * workers,
      .run = [workers](Bench& bench) -> Result<Figure> {
        const Runs runs = TROUPE_TRY(Runs::create(bench));
        RunSpec spec{.model = config_text(kSmallShape),
                     .settings = small_settings(1, "ddp", false)};
        const TrainProgram alone = TROUPE_TRY(runs.run("alone", spec));
        std::map<std::uint64_t, std::string> by_weights;
        double worst = 0;
        std::vector<std::string> strategies = {"ddp", "zero1", "zero2", "shard_grad_op", "zero3"};
        if (workers == 4) strategies.push_back("hsdp");
        for (const std::string& strategy : strategies) {
          spec.settings = small_settings(workers, strategy, false);
          const TrainProgram run = TROUPE_TRY(runs.run(strategy, spec));
          worst = std::max(worst, TROUPE_TRY(loss_difference(run, alone)));
          by_weights[TROUPE_TRY(run.weights_hash())] += " " + strategy;
        }
        if (by_weights.size() != 1) {
          std::string text = "weights differ:";
          for (const auto& [hash, names] : by_weights) text += names + ";";
          return error(Code::kDataLoss, "{}", text);
        }
        return Figure{.value = worst,
                      .unit = "of the loss",
                      .bar = Figure::Bar::kAtMost,
                      .bar_value = 1e-4,
                      .text = fmt::format("against one rank; {} strategies with equal weights",
                                          strategies.size())};
      }};
}

std::string parts_of(const train::RunEvent& event) {
  const auto part = [](const std::optional<double>& ms) { return ms.value_or(0); };
  return fmt::format("noticed {:.0f}, respawn {:.0f}, attach {:.0f}, form {:.0f}, step {:.0f} ms",
                     part(event.detected_after_ms), part(event.respawn_ms), part(event.attach_ms),
                     part(event.reform_ms), part(event.first_step_ms));
}

// offloaded: the undisturbed run is not, and the kill strikes while the host updates.
Check kill_check(bool offloaded) {
  return {
      .name = offloaded ? "program/kill -9 offloaded" : "program/kill -9",
      .what = offloaded ? "a rank with parameters and optimizer state in the host's memory is "
                          "killed in an update: no step is lost, the bits are those without offload"
                        : "a rank is killed: it goes on from the GPU's memory, and no step is lost",
      .seconds = 8,
      .run = [offloaded](Bench& bench) -> Result<Figure> {
        const Runs runs = TROUPE_TRY(Runs::create(bench));
        RunSpec spec{.model = config_text(kSmallShape),
                     .settings = small_settings(2, offloaded ? "zero3" : "zero2", false)};
        const TrainProgram calm = TROUPE_TRY(runs.run("calm", spec));
        spec.settings += offloaded
                             ? "troupe.offload: parameters\n"
                               "troupe.chaos: kill@step=4,rank=1,point=chunk,operation=written\n"
                             : "troupe.chaos: kill@step=4,rank=1\n";
        const TrainProgram killed = TROUPE_TRY(runs.run("killed", spec));
        const train::RunEvent* recovered = nullptr;
        const auto events = TROUPE_TRY(killed.events());
        for (const train::RunEvent& event : events)
          if (event.event == train::events::kRecovered) recovered = &event;
        if (!recovered) return error(Code::kDataLoss, "no recovery is among the events");
        if (recovered->lost_steps.value_or(-1) != 0)
          return error(Code::kDataLoss, "{} steps were lost", recovered->lost_steps.value_or(-1));
        if (TROUPE_TRY(killed.weights_hash()) != TROUPE_TRY(calm.weights_hash()))
          return error(Code::kDataLoss, "the weights are not those of the undisturbed run");
        return Figure{.value = recovered->recovery_ms.value_or(1e30),
                      .unit = "ms",
                      .text = "0 steps lost, equal weights; " + parts_of(*recovered)};
      }};
}

// The steps of both logs are equal; how many those are.
Result<std::size_t> equal_steps(const std::vector<train::StepRecord>& left,
                                const std::vector<train::StepRecord>& right) {
  const std::size_t both = std::min(left.size(), right.size());
  for (std::size_t i = 0; i < both; ++i) {
    if (left[i].step != right[i].step || left[i].loss != right[i].loss ||
        left[i].grad_norm != right[i].grad_norm)
      return error(Code::kDataLoss, "step {} has a loss of {:.9g} beside {:.9g} undisturbed",
                   left[i].step, left[i].loss, right[i].loss);
  }
  return both;
}

struct SpareRun {
  train::RunEvent recovered;
  std::vector<train::StepRecord> steps;
  std::int64_t bytes_in_use = 0;  // of the device, by two trainers and a spare
};

Result<SpareRun> run_with_spare(const Runs& runs, const RunSpec& spec) {
  SpareRun out;
  TrainProgram run = TROUPE_TRY(runs.start("killed", spec));
  TROUPE_RETURN_IF_ERROR(run.wait_text("logs/spare-0.log", "ready for a rank", kRunLimit));
  TROUPE_RETURN_IF_ERROR(run.wait_steps(3, kRunLimit));
  out.bytes_in_use = TROUPE_TRY(runs.bytes_in_use());
  TROUPE_RETURN_IF_ERROR(run.kill_rank(1));
  TROUPE_RETURN_IF_ERROR(run.wait_text(train::kEventsFile, train::events::kRecovered, kRunLimit));
  bool by_spare = false;
  for (const train::RunEvent& event : TROUPE_TRY(run.events())) {
    by_spare |= event.event == train::events::kSpare;
    if (event.event == train::events::kRecovered) out.recovered = event;
  }
  if (out.recovered.event.empty()) return error(Code::kDataLoss, "no recovery is among the events");
  if (!by_spare) return error(Code::kFailedPrecondition, "another process than the spare went on");
  if (out.recovered.lost_steps.value_or(-1) != 0)
    return error(Code::kDataLoss, "{} steps were lost", out.recovered.lost_steps.value_or(-1));
  // Some steps further: what it went on from.
  TROUPE_RETURN_IF_ERROR(run.wait_steps(out.recovered.step + 3, kRunLimit));
  out.steps = TROUPE_TRY(run.steps());
  return out;
}

Check spare_check() {
  return {.name = "program/kill -9 with a spare",
          .what = "a rank is killed: a process that stands by goes on from the GPU's memory",
          .seconds = 12,
          .run = [](Bench& bench) -> Result<Figure> {
            const Runs runs = TROUPE_TRY(Runs::create(bench));
            const std::string settings = small_settings(2, "zero2", false);
            RunSpec spec{.model = config_text(kSmallShape),
                         .settings = settings + "troupe.spares: 1\n",
                         .steps = 1'000'000};
            const SpareRun killed = TROUPE_TRY(run_with_spare(runs, spec));
            spec.settings = settings;
            TrainProgram calm = TROUPE_TRY(runs.start("calm", spec));
            const auto steps = static_cast<std::int64_t>(killed.steps.size());
            TROUPE_RETURN_IF_ERROR(calm.wait_steps(steps, kRunLimit));
            const std::int64_t spare_bytes = killed.bytes_in_use - TROUPE_TRY(runs.bytes_in_use());
            const std::size_t equal =
                TROUPE_TRY(equal_steps(killed.steps, TROUPE_TRY(calm.steps())));
            if (std::cmp_less(equal, steps))
              return error(Code::kDataLoss, "{} steps of {} are in both logs", equal, steps);
            Figure figure{
                .value = killed.recovered.recovery_ms.value_or(1e30),
                .unit = "ms",
                .text = fmt::format(
                    "0 steps lost, {} equal steps; {}; the spare took {:.0f} MiB of the GPU "
                    "(`troupe plan` counts {:.0f})",
                    equal, parts_of(killed.recovered), static_cast<double>(spare_bytes) / (1 << 20),
                    static_cast<double>(train::kSpareDeviceBytes) / (1 << 20))};
            if (!bench.rehearsal()) figure.bar = Figure::Bar::kAtMost, figure.bar_value = 1000;
            return figure;
          }};
}

// Best published for one H100.
struct RateCase {
  std::string name;
  RateShape shape;
  double published;  // tokens/s
  double seconds;
};

Check rate_check(const RateCase& rate) {
  return {.name = "program/rate " + rate.name,
          .what =
              "bf16 training, 1,024 tokens a row: 60 % of the best that is published for one "
              "H100",
          .seconds = rate.seconds,
          .run = [rate](Bench& bench) -> Result<Figure> {
            const Runs runs = TROUPE_TRY(Runs::create(bench));
            const RunRate found =
                TROUPE_TRY(runs.rate(rate_spec(bench, rate.shape, kFastSettings)));
            Figure figure{
                .value = found.tokens_per_s,
                .unit = "tokens/s",
                .text = fmt::format(
                    "of {} steps; {:.0f} are published, {:.0f} %; the device had {} in use",
                    found.steps, rate.published, 100 * found.tokens_per_s / rate.published,
                    train::memory_size_text(bytes_of(found.device_bytes, train::kDeviceInUse)))};
            if (!bench.rehearsal())
              figure.bar = Figure::Bar::kAtLeast, figure.bar_value = 0.6 * rate.published;
            return figure;
          }};
}

}  // namespace

void add_program_checks(std::vector<Check>& checks) {
  checks.push_back(loss_check(false));
  checks.push_back(loss_check(true));
  checks.push_back(kill_check(false));
  checks.push_back(spare_check());
  checks.push_back(strategies_check(2));
  checks.push_back(strategies_check(4));
  checks.push_back(kill_check(true));
}

void add_program_rate_checks(std::vector<Check>& checks) {
  checks.push_back(rate_check({"Qwen2.5-0.5B", kRateHalfB, 149'000, 20}));
  checks.push_back(rate_check({"Qwen2.5-1.5B", kRate1B, 59'000, 25}));
}

void add_large_program_rate_checks(std::vector<Check>& checks) {
  checks.push_back(rate_check({"Qwen2.5-7B", kRate7B, 13'800, 35}));
}

}  // namespace troupe::tools::gpu
