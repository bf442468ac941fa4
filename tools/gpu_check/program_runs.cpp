#include "tools/gpu_check/program_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "train/cuda/device/device.h"

namespace troupe::tools::gpu {
namespace {

// Of a small model on a GPU: one that hangs must not take the time of all others.
constexpr auto kSmallRunLimit = std::chrono::seconds(45);
constexpr std::int64_t kWarmUpSteps = 3, kTimedSteps = 8;
// Memory that does not fall any more is what it will stay.
constexpr auto kMemoryLimit = std::chrono::seconds(15), kAskSeconds = std::chrono::seconds(1);
constexpr auto kAskInterval = std::chrono::milliseconds(50);
constexpr int kStillAsked = kAskSeconds / kAskInterval;

}  // namespace

std::string small_settings(int workers, const std::string& strategy, bool bf16) {
  return fmt::format(
      "per_device_train_batch_size: 2\ngradient_accumulation_steps: {}\ncutoff_len: 128\n"
      "bf16: {}\ntroupe.workers: {}\ntroupe.strategy: {}\ntroupe.gpus_per_worker: {}\n",
      4 / workers, bf16, workers, strategy, 1.0 / workers);
}

RunSpec rate_spec(const Bench& bench, const RateShape& rate, const std::string& settings) {
  const std::string own =
      bench.rehearsal() ? small_settings(1, "ddp", true)
                        : fmt::format(
                              "{}: true\ntroupe.strategy: ddp\nper_device_train_batch_size: {}\n"
                              "gradient_accumulation_steps: 1\ncutoff_len: 1024\n",
                              rate.pure_bf16 ? "pure_bf16" : "bf16", rate.rows);
  return {.model = config_text(bench.rehearsal() ? kSmallShape : rate.shape),
          .settings = own + settings,
          .steps = 1000};
}

Result<Runs> Runs::create(Bench& bench) {
  bench.close();
  const std::string& program = bench.options().program;
  if (program.empty())
    return error(Code::kUnsupported, "this check starts `troupe`: run it from gpu_check");
  // Beside this program.
  return Runs(bench, program.substr(0, program.rfind('/') + 1) + "troupe",
              TROUPE_TRY(WorkFolder::create()));
}

Result<std::map<std::string, std::string>> Runs::environment() const {
  auto environment = TROUPE_TRY(bench_->device_environment());
  environment["TROUPE_CUDA_LIBRARY"] = bench_->options().library_path;
  // The tests' NCCL connects threads, and ranks are processes here.
  if (bench_->rehearsal()) environment["TROUPE_FAKE_CUDA_NCCL"] = "0";
  return environment;
}

Result<TrainProgram> Runs::start(const std::string& name, const RunSpec& spec) const {
  return TrainProgram::start(program_, TROUPE_TRY(environment()), folder_.path(), name, spec);
}

Result<TrainProgram> Runs::run(const std::string& name, const RunSpec& spec) const {
  TrainProgram run = TROUPE_TRY(start(name, spec));
  const Duration limit = bench_->rehearsal() ? kRunLimit : kSmallRunLimit;
  if (const Status ended = run.wait(limit); !ended.ok()) return ended.prefixed(name);
  return run;
}

Result<RunRate> Runs::rate(const RunSpec& spec) const {
  const std::string key = spec.model + spec.settings;
  const auto known = bench_->run_rates().find(key);
  if (known != bench_->run_rates().end()) return known->second;
  RunRate rate{.in_use_before = TROUPE_TRY(bytes_in_use())};
  TrainProgram run = TROUPE_TRY(start("rate", spec));
  TROUPE_RETURN_IF_ERROR(run.wait_steps(kWarmUpSteps + kTimedSteps, kRunLimit));
  std::vector<double> rates;
  for (train::StepRecord& step : TROUPE_TRY(run.steps())) {
    if (step.step > kWarmUpSteps) rates.push_back(step.rates.tokens_per_s);
    if (!step.device_bytes.empty()) rate.device_bytes = std::move(step.device_bytes);
  }
  if (rates.empty()) return error(Code::kDataLoss, "no step has a rate");
  if (rate.device_bytes.empty())
    return error(Code::kDataLoss, "the run's steps do not tell the device's memory");
  std::sort(rates.begin(), rates.end());
  rate.tokens_per_s = rates[rates.size() / 2];
  rate.steps = static_cast<int>(rates.size());
  bench_->run_rates()[key] = rate;
  return rate;
}

Result<json::Value> Runs::plan(const std::string& name, const RunSpec& spec) const {
  const std::string text = TROUPE_TRY(TrainProgram::planned(program_, TROUPE_TRY(environment()),
                                                            folder_.path(), name, spec, kRunLimit));
  const json::Value plan = TROUPE_TRY(json::parse(text, "troupe plan --json"));
  const json::Value* plans = json::find(plan, "plans");
  if (plans && plans->is_array())
    for (const json::Value& one : plans->get_array())
      if (json::find_bool(one, "configured").value_or(false)) return one;
  return error(Code::kDataLoss, "`troupe plan --json` says nothing of the run as configured");
}

Result<std::int64_t> Runs::bytes_in_use() const {
  const auto device = TROUPE_TRY(
      train::CudaDevice::open(bench_->library(), bench_->options().device, SystemEnvironment()));
  const auto ask = [&]() -> Result<std::int64_t> {
    const auto use = TROUPE_TRY(device->memory_use());
    return use.total_bytes - use.free_bytes;
  };
  std::int64_t least = TROUPE_TRY(ask());
  // Who held memory before may be gone before it is.
  if (bench_->rehearsal()) return least;
  const Deadline deadline = Deadline::after(kMemoryLimit);
  for (int still = 0; still < kStillAsked && !deadline.passed(); ++still) {
    std::this_thread::sleep_for(kAskInterval);
    const std::int64_t now = TROUPE_TRY(ask());
    if (now < least) least = now, still = 0;
  }
  return least;
}

std::int64_t bytes_of(const std::vector<train::NamedBytes>& parts, std::string_view name) {
  for (const train::NamedBytes& part : parts)
    if (part.name == name) return part.bytes;
  return 0;
}

}  // namespace troupe::tools::gpu
