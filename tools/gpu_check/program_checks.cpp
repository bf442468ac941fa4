// `troupe train` on the GPU, as its users run it: losses beside the CPU's, ranks that share the
// GPU, a killed rank, the rate of real models' shapes.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/check.h"
#include "tools/gpu_check/train_program.h"

namespace troupe::tools::gpu {
namespace {

constexpr auto kRunLimit = std::chrono::seconds(120);

const LlamaShape kSmall{.hidden = 64,
                        .inner = 160,
                        .layers = 2,
                        .heads = 4,
                        .key_heads = 2,
                        .vocabulary = 320,
                        .positions = 256};

// Beside this program.
Result<std::string> troupe_of(const Bench& bench) {
  const std::string& program = bench.options().program;
  if (program.empty())
    return error(Code::kUnsupported, "this check starts `troupe`: run it from gpu_check");
  return program.substr(0, program.rfind('/') + 1) + "troupe";
}

// Runs one after another in a folder.
class Runs {
 public:
  // The device's memory is theirs.
  static Result<Runs> create(Bench& bench) {
    bench.close();
    return Runs(bench, TROUPE_TRY(troupe_of(bench)), TROUPE_TRY(WorkFolder::create()));
  }
  Result<TrainProgram> start(const std::string& name, const RunSpec& spec) const {
    std::map<std::string, std::string> environment = {
        {"TROUPE_CUDA_LIBRARY", bench_->options().library_path}};
    // The tests' NCCL connects threads, and ranks are processes here.
    if (bench_->rehearsal()) environment["TROUPE_FAKE_CUDA_NCCL"] = "0";
    return TrainProgram::start(program_, std::move(environment), folder_.path(), name, spec);
  }
  // To its end.
  Result<TrainProgram> run(const std::string& name, const RunSpec& spec) const {
    TrainProgram run = TROUPE_TRY(start(name, spec));
    if (const Status ended = run.wait(kRunLimit); !ended.ok()) return ended.prefixed(name);
    return run;
  }

 private:
  Runs(const Bench& bench, std::string program, WorkFolder folder)
      : bench_(&bench), program_(std::move(program)), folder_(std::move(folder)) {}
  const Bench* bench_;
  std::string program_;
  WorkFolder folder_;
};

std::string small_settings(int workers, const std::string& strategy, bool bf16) {
  // Micro-batches that are the same whatever the number of ranks.
  return fmt::format(
      "per_device_train_batch_size: 2\ngradient_accumulation_steps: {}\ncutoff_len: 128\n"
      "bf16: {}\ntroupe.workers: {}\ntroupe.strategy: {}\ntroupe.gpus_per_worker: {}\n",
      4 / workers, bf16, workers, strategy, 1.0 / workers);
}

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
          .seconds = 8,
          .run = [bf16](Bench& bench) -> Result<Figure> {
            const Runs runs = TROUPE_TRY(Runs::create(bench));
            RunSpec spec{.model = config_text(kSmall), .settings = small_settings(1, "ddp", bf16)};
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
      .seconds = 20,
      .run = [workers](Bench& bench) -> Result<Figure> {
        const Runs runs = TROUPE_TRY(Runs::create(bench));
        RunSpec spec{.model = config_text(kSmall), .settings = small_settings(1, "ddp", false)};
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
      .seconds = 10,
      .run = [offloaded](Bench& bench) -> Result<Figure> {
        const Runs runs = TROUPE_TRY(Runs::create(bench));
        RunSpec spec{.model = config_text(kSmall),
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

struct RateCase {
  std::string name;
  LlamaShape shape;
  std::string settings;
  double bar;  // tokens/s
  double seconds;
};

// Tokens/s: the median of the steps after those that warm up.
Check rate_check(const RateCase& rate) {
  return {.name = "program/rate " + rate.name,
          .what =
              "bf16 training, 1,024 tokens a row: 60 % of the best that is published for one "
              "H100",
          .seconds = rate.seconds,
          .run = [rate](Bench& bench) -> Result<Figure> {
            const Runs runs = TROUPE_TRY(Runs::create(bench));
            const bool small = bench.rehearsal();
            constexpr std::int64_t kWarmUp = 3, kTimed = 8;
            const RunSpec spec{.model = config_text(small ? kSmall : rate.shape),
                               .settings = small ? small_settings(1, "ddp", true)
                                                 : rate.settings + "cutoff_len: 1024\n",
                               .steps = 1000};
            TrainProgram run = TROUPE_TRY(runs.start("rate", spec));
            TROUPE_RETURN_IF_ERROR(run.wait_steps(kWarmUp + kTimed, kRunLimit));
            std::vector<double> rates;
            for (const train::StepRecord& step : TROUPE_TRY(run.steps()))
              if (step.step > kWarmUp) rates.push_back(step.rates.tokens_per_s);
            if (rates.empty()) return error(Code::kDataLoss, "no step has a rate");
            std::sort(rates.begin(), rates.end());
            Figure figure{.value = rates[rates.size() / 2],
                          .unit = "tokens/s",
                          .text = fmt::format("of {} steps", rates.size())};
            if (!small) figure.bar = Figure::Bar::kAtLeast, figure.bar_value = 0.6 * rate.bar;
            return figure;
          }};
}

}  // namespace

void add_program_checks(std::vector<Check>& checks) {
  checks.push_back(loss_check(false));
  checks.push_back(loss_check(true));
  checks.push_back(kill_check(false));
  checks.push_back(strategies_check(2));
  checks.push_back(strategies_check(4));
  checks.push_back(kill_check(true));
}

void add_program_rate_checks(std::vector<Check>& checks) {
  const std::string mixed = "bf16: true\ngradient_accumulation_steps: 1\n";
  checks.push_back(rate_check({"Qwen2.5-0.5B",
                               {.hidden = 896,
                                .inner = 4864,
                                .layers = 24,
                                .heads = 14,
                                .key_heads = 2,
                                .vocabulary = 151936,
                                .positions = 4096,
                                .qwen2 = true},
                               mixed + "per_device_train_batch_size: 32\n",
                               149'000,
                               25}));
  checks.push_back(rate_check({"Qwen2.5-1.5B",
                               {.hidden = 1536,
                                .inner = 8960,
                                .layers = 28,
                                .heads = 12,
                                .key_heads = 2,
                                .vocabulary = 151936,
                                .positions = 4096,
                                .qwen2 = true},
                               mixed + "per_device_train_batch_size: 16\n",
                               59'000,
                               35}));
  // With its state in bf16: in fp32 it alone would take 122 GB.
  checks.push_back(rate_check({"Qwen2.5-7B",
                               {.hidden = 3584,
                                .inner = 18944,
                                .layers = 28,
                                .heads = 28,
                                .key_heads = 4,
                                .vocabulary = 152064,
                                .positions = 4096,
                                .tied = false,
                                .qwen2 = true},
                               "pure_bf16: true\n"
                               "gradient_accumulation_steps: 1\nper_device_train_batch_size: 8\n",
                               13'800,
                               70}));
}

}  // namespace troupe::tools::gpu
