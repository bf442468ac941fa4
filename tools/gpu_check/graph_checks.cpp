// Layers' launches as graphs: the bits of a step without, and its time.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "tools/gpu_check/check.h"
#include "tools/gpu_check/device_model.h"
#include "train/cuda/operators/fp8_products.h"

namespace troupe::tools::gpu {
namespace {

struct Steps {
  std::vector<double> losses;
  std::vector<float> parameters;
  double milliseconds = 0;  // of a step, the median
};

Result<Steps> train_steps(Bench& bench, const train::ModelConfig& config,
                          const TrainOptions& options, int count) {
  Gpu* gpu = TROUPE_TRY(bench.gpu());
  const auto model = TROUPE_TRY(gpu_model(config, options, *gpu));
  TROUPE_RETURN_IF_ERROR(set_some_parameters(*model));
  Steps steps;
  std::vector<double> times;
  for (int step = 1; step <= count; ++step) {
    // Batches of two lengths in turns: each layer has two graphs.
    const CountingBatch batch(options.rows, step % 4 == 0 ? options.length / 2 : options.length,
                              config.vocab_size, step, false);
    const auto begin = std::chrono::steady_clock::now();
    TROUPE_RETURN_IF_ERROR(model->zero_gradients());
    const train::LossSum sum = TROUPE_TRY(model->forward_backward(
        batch.micro(), 1.0f / static_cast<float>(batch.rows * batch.length)));
    [[maybe_unused]] const double norm =
        TROUPE_TRY(model->update({.learning_rate = 1e-4, .step = step}));
    TROUPE_RETURN_IF_ERROR(model->synchronize());
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - begin;
    steps.losses.push_back(sum.loss_sum);
    // The first ones choose algorithms, plan attention and capture.
    if (step > count / 2 && step % 4 != 0) times.push_back(spent.count());
  }
  std::sort(times.begin(), times.end());
  steps.milliseconds = times[times.size() / 2];
  steps.parameters = TROUPE_TRY(model->parameters());
  return steps;
}

Result<Figure> check_steps(Bench& bench) {
  struct Case {
    const char* name;
    train::ModelConfig config;
    TrainOptions options;
  };
  const train::DType bf16 = train::DType::kBF16;
  const std::int64_t length = bench.rehearsal() ? 16 : 128;
  std::vector<Case> cases = {
      {"small Llama", small_models(true).front().config, {.rows = 2, .length = 40}},
      {"Qwen2.5-0.5B",
       rate_model(bench.rehearsal()),
       {.compute = bf16,
        .activations = bf16,
        .rows = 1,
        .length = length,
        .recompute = train::Recompute::kCheapOperators}}};
  if (train::check_fp8(*TROUPE_TRY(bench.gpu())->device).ok()) {
    cases.push_back(cases.back());
    cases.back().name = "Qwen2.5-0.5B in fp8";
    cases.back().options.fp8 = true;
  }
  const int count = bench.rehearsal() ? 14 : 40;
  Figure figure{.unit = "of the time of a step without"};
  for (const Case& each : cases) {
    TrainOptions options = each.options;
    const Steps without = TROUPE_TRY(train_steps(bench, each.config, options, count));
    options.graphs = true;
    Gpu* gpu = TROUPE_TRY(bench.gpu());
    const std::int64_t free = TROUPE_TRY(gpu->device->memory_use()).free_bytes;
    const train::BlockGraphs& graphs = *operators_of(*gpu, options).graphs();
    const auto before = graphs.counts();
    const Steps with = TROUPE_TRY(train_steps(bench, each.config, options, count));
    const std::int64_t taken = free - TROUPE_TRY(gpu->device->memory_use()).free_bytes;
    const auto after = graphs.counts();
    const std::int64_t launched = after.launched - before.launched;
    if (!graphs.in_use() || launched == 0)
      return error(Code::kInternal, "{}: no graph was launched", each.name);
    if (with.losses != without.losses ||
        std::memcmp(with.parameters.data(), without.parameters.data(),
                    with.parameters.size() * sizeof(float)) != 0)
      return error(Code::kInternal, "{}: with graphs the bits are others after {} steps", each.name,
                   count);
    figure.value = with.milliseconds / without.milliseconds;
    figure.text += fmt::format(
        "{}, {} tokens: {:.2f} ms a step with {} graphs, {:.2f} without, equal bits, {} of the "
        "device's memory for them; ",
        each.name, options.rows * options.length, with.milliseconds,
        after.captured - before.captured, without.milliseconds,
        train::memory_size_text(std::max<std::int64_t>(0, taken)));
  }
  return figure;
}

}  // namespace

void add_graph_checks(std::vector<Check>& checks) {
  checks.push_back({"graphs/steps",
                    "steps of AdamW with layers' launches as graphs: the bits of those without, "
                    "and their times, of a small model and of few tokens, in fp8, too",
                    15, check_steps});
}

}  // namespace troupe::tools::gpu
