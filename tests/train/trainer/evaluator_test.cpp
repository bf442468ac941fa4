#include "train/trainer/evaluator.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "runtime/base/json.h"
#include "runtime/collective/cpu_communicator.h"
#include "tests/support/test_data.h"
#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"
#include "train/objectives/objectives.h"
#include "train/trainer/adapted_model.h"
#include "train/trainer/gemm_rate.h"

namespace troupe::train {
namespace {

// The model and the samples of tests/golden, and what transformers' Trainer.evaluate() said.
struct EvaluationGolden {
  EvaluationGolden() {
    const std::string folder = troupe::tests::source_dir() + "/tests/golden/";
    PosixFileSystem files;
    document = json::parse(files.read(folder + "evaluation/golden.json", 1 << 20).value(), "golden")
                   .value();
    model = folder + "model/llama";
    config =
        ModelConfig::parse(files.read(model + "/config.json", 1 << 20).value(), "config").value();
    const auto integers = [](const json::Value& list) {
      std::vector<std::int32_t> out;
      for (const auto& number : list.as_array()) out.push_back(number.to_number<std::int32_t>());
      return out;
    };
    for (const auto& sample : document.at("samples").as_array()) {
      dataset.append(integers(sample.at("input_ids")), integers(sample.at("labels")));
    }
  }
  json::Value document;
  ModelConfig config;
  std::string model;
  TokenDataset dataset{TokenDataset::Kind::kSupervised, 0};
};

// Units that meet the other ranks whenever one is acquired, as sharded ones do: ranks that do not
// make the same passes do not get through.
class MeetingUnits final : public UnitAccess {
 public:
  MeetingUnits(const ParameterLayout& layout, std::span<const float> parameters,
               collective::Communicator& ranks)
      : resident_(layout, parameters, {}), ranks_(ranks) {}
  Result<UnitParameters> acquire(int unit, Phase phase) override {
    std::vector<std::int32_t> units(static_cast<std::size_t>(ranks_.world_size()));
    const std::int32_t mine = unit;
    const std::vector<std::size_t> counts(units.size(), 1);
    TROUPE_RETURN_IF_ERROR(ranks_.all_gather(std::span<const std::int32_t>(&mine, 1),
                                             std::span<std::int32_t>(units), counts));
    for (const auto other : units) {
      if (other != unit) return error(Code::kProtocol, "unit {} here, {} there", unit, other);
    }
    ++acquired;
    return resident_.acquire(unit, phase);
  }
  void release(int unit, Phase phase) override { resident_.release(unit, phase); }
  Result<UnitGradient> gradient(int unit) override { return resident_.gradient(unit); }
  Status gradient_done(int unit) override { return resident_.gradient_done(unit); }
  int acquired = 0;

 private:
  ResidentUnits resident_;
  collective::Communicator& ranks_;
};

// One rank's evaluation from scratch.
struct Rank {
  Rank(const EvaluationGolden& golden, int threads)
      : arena(threads),
        operators(make_cpu_operators(arena)),
        model(make_model(golden.config, *operators)),
        parameters(static_cast<std::size_t>(model->layout().total_elements())) {
    PosixFileSystem files;
    const auto folder = AdaptedModel::open(files, golden.model);
    REQUIRE_MESSAGE(folder.ok(), folder.status().to_string());
    for (const ParameterInfo& info : model->layout().parameters()) {
      const auto at = static_cast<std::size_t>(model->layout().flat_offset(info));
      REQUIRE(folder
                  ->read_merged(
                      info, AdaptedModel::Rounding::kNone,
                      std::span(parameters).subspan(at, static_cast<std::size_t>(info.elements)))
                  .ok());
    }
  }
  Result<EvalResult> run(const EvaluationGolden& golden, const Evaluator& evaluator,
                         collective::Communicator& ranks, const Evaluator::Progress& progress) {
    Activations activations(golden.config, evaluator.activation_options(), *operators);
    MeetingUnits units(model->layout(), parameters, ranks);
    SystemClock clock;
    auto result = evaluator.run(*make_objective(),
                                {.model = *model, .units = units, .activations = activations},
                                ranks, clock, progress);
    acquired = units.acquired;
    return result;
  }
  Arena arena;
  std::unique_ptr<Operators> operators;
  std::unique_ptr<Model> model;
  std::vector<float> parameters;
  int acquired = 0;
};

struct Evaluation {
  std::vector<Result<EvalResult>> results;
  std::vector<int> acquired;
};

Evaluation evaluate(const EvaluationGolden& golden, int world, int threads, std::int64_t batch_size,
                    const Evaluator::Progress& progress = {}, bool accuracy = false);
Evaluation evaluate(const EvaluationGolden& golden, const Evaluator& evaluator, int world,
                    int threads, const Evaluator::Progress& progress = {}) {
  auto links =
      collective::make_local_links(std::vector<int>(static_cast<std::size_t>(world), 0)).value();
  Evaluation out;
  out.results.resize(static_cast<std::size_t>(world), error(Code::kInternal, "not run"));
  out.acquired.resize(static_cast<std::size_t>(world));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      auto communicator =
          collective::make_cpu_communicator({.rank = rank, .world_size = world, .generation = 1},
                                            std::move(links[at]))
              .value();
      Rank self(golden, threads);
      out.results[at] =
          self.run(golden, evaluator, *communicator, rank == 0 ? progress : Evaluator::Progress());
      out.acquired[at] = self.acquired;
      if (!out.results[at].ok()) communicator->abort(out.results[at].status());
    });
  }
  for (auto& rank : ranks) rank.join();
  return out;
}

Evaluation evaluate(const EvaluationGolden& golden, int world, int threads, std::int64_t batch_size,
                    const Evaluator::Progress& progress, bool accuracy) {
  return evaluate(
      golden,
      Evaluator::make(golden.dataset, {.batch_size = batch_size, .accuracy = accuracy}).value(),
      world, threads, progress);
}

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

TEST_CASE("eval_loss is what transformers' trainers report, at every batch size") {
  const EvaluationGolden golden;
  for (const auto weights : {BatchWeights::kRows, BatchWeights::kEqual}) {
    const char* trainer = weights == BatchWeights::kRows ? "eval_loss" : "eval_loss_seq2seq";
    CAPTURE(trainer);
    for (const auto& [size, loss] : golden.document.at(trainer).as_object()) {
      CAPTURE(std::string(size));
      const auto evaluation = evaluate(
          golden,
          Evaluator::make(golden.dataset,
                          {.batch_size = std::stoll(std::string(size)), .weights = weights})
              .value(),
          1, 1);
      REQUIRE(evaluation.results[0].ok());
      const EvalResult& result = *evaluation.results[0];
      CHECK(result.loss == doctest::Approx(loss.to_number<double>()).epsilon(1e-6));
      CHECK(result.samples == golden.dataset.size());
      CHECK(result.seconds > 0);
      CHECK(result.non_finite_batches == 0);
    }
  }
}

TEST_CASE("a part of the samples is evaluated as if there were no others") {
  const EvaluationGolden golden;  // 11 samples
  const std::vector<EvalPart> parts = {{"first", 4}, {"second", 7}};
  const auto evaluators = Evaluator::make_all(golden.dataset, parts, {.batch_size = 3}).value();
  REQUIRE(evaluators.size() == 2);
  std::int64_t at = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    TokenDataset alone(golden.dataset.kind(), golden.dataset.pad_id());
    for (const std::int64_t end = at + parts[i].samples; at < end; ++at) {
      if (alone.kind() == TokenDataset::Kind::kPretrain) {
        alone.append(golden.dataset.ids(at));
      } else {
        alone.append(golden.dataset.ids(at), golden.dataset.labels(at));
      }
    }
    const auto expected =
        *evaluate(golden, Evaluator::make(alone, {.batch_size = 3}).value(), 1, 1).results[0];
    const auto found = *evaluate(golden, evaluators[i], 2, 1).results[0];
    CHECK(same_bits(found.loss, expected.loss));
    CHECK(found.samples == parts[i].samples);
    CHECK(found.data_set == parts[i].name);
    CHECK(metric_prefix(found) == "eval_" + parts[i].name + "_");
  }
  CHECK(Evaluator::make_all(golden.dataset, {}, {}).value().size() == 1);
  CHECK_FALSE(Evaluator::make_all(golden.dataset, {{"more", 12}}, {}).ok());
}

TEST_CASE("the same bits at every world size and number of threads; all ranks make equal passes") {
  const EvaluationGolden golden;  // 11 samples
  for (const std::int64_t batch_size : {1, 3, 16}) {
    const auto expected = *evaluate(golden, 1, 1, batch_size).results[0];
    for (const int world : {1, 2, 3, 4}) {
      const auto evaluation = evaluate(golden, world, world == 2 ? 2 : 1, batch_size);
      for (std::size_t rank = 0; rank < evaluation.results.size(); ++rank) {
        CAPTURE(world);
        CAPTURE(rank);
        REQUIRE_MESSAGE(evaluation.results[rank].ok(),
                        evaluation.results[rank].status().to_string());
        CHECK(same_bits(evaluation.results[rank]->loss, expected.loss));
        CHECK(same_bits(evaluation.results[rank]->loss_per_target, expected.loss_per_target));
        CHECK(evaluation.results[rank]->targets == expected.targets);
        CHECK(evaluation.results[rank]->batches == expected.batches);
        CHECK(evaluation.acquired[rank] == evaluation.acquired[0]);
      }
    }
  }
}

TEST_CASE(
    "accuracy is that of LLaMA-Factory's ComputeAccuracy: the mean over samples of their own") {
  const EvaluationGolden golden;
  Rank alone(golden, 1);
  ResidentUnits units(alone.model->layout(), alone.parameters, {});
  double sum = 0;
  for (std::int64_t sample = 0; sample < golden.dataset.size(); ++sample) {
    const std::uint32_t one[] = {static_cast<std::uint32_t>(sample)};
    const TokenBatch batch = collate_ragged(golden.dataset, one);
    Activations activations(golden.config,
                            {.rows_max = 1, .length_max = batch.length, .training = false},
                            *alone.operators);
    const MicroBatch micro{
        .rows = 1, .length = batch.length, .ids = batch.ids, .labels = batch.labels};
    std::vector<float> logits(static_cast<std::size_t>(batch.length * golden.config.vocab_size));
    REQUIRE(alone.model->logits(micro, units, activations, logits).ok());
    double right = 0, targets = 0;
    for (std::int64_t at = 0; at + 1 < batch.length; ++at) {
      const auto label = batch.labels[static_cast<std::size_t>(at) + 1];
      if (label == kIgnoredLabel) continue;
      const auto begin = logits.begin() + at * golden.config.vocab_size;
      right += std::max_element(begin, begin + golden.config.vocab_size) - begin == label;
      ++targets;
    }
    sum += right / targets;
  }
  for (const int world : {1, 2}) {
    const auto result = *evaluate(golden, world, 1, 3, {}, true).results[0];
    CHECK(result.metrics.counts[0] == static_cast<double>(golden.dataset.size()));
    CHECK(result.metrics.sums[0] == doctest::Approx(sum).epsilon(1e-12));
    CHECK(same_bits(result.loss, evaluate(golden, world, 1, 3).results[0]->loss));
  }
}

TEST_CASE("the mean over targets is the loss of all samples as one batch") {
  const EvaluationGolden golden;
  const auto one = *evaluate(golden, 1, 1, 16).results[0];
  const auto many = *evaluate(golden, 2, 1, 2).results[0];
  CHECK(one.loss == doctest::Approx(one.loss_per_target).epsilon(1e-9));
  CHECK(many.loss_per_target == doctest::Approx(one.loss).epsilon(1e-6));
  CHECK(many.loss != doctest::Approx(one.loss).epsilon(1e-6));
}

TEST_CASE("progress is told round by round and may end the evaluation for all") {
  const EvaluationGolden golden;
  std::vector<std::int64_t> rounds;
  auto evaluation = evaluate(golden, 2, 1, 2, [&](std::int64_t done, std::int64_t of) -> Status {
    CHECK(of == 3);
    rounds.push_back(done);
    return {};
  });
  CHECK(evaluation.results[0].ok());
  CHECK(rounds == std::vector<std::int64_t>{0, 1, 2});
  evaluation = evaluate(golden, 2, 1, 2, [&](std::int64_t done, std::int64_t) -> Status {
    return done == 1 ? error(Code::kCancelled, "enough") : Status();
  });
  CHECK(evaluation.results[0].status().code() == Code::kCancelled);
  CHECK(evaluation.results[1].status().code() == Code::kAborted);
}

TEST_CASE("sums of batches: weights, batches without targets, what is not finite") {
  const double nan = std::nan("");
  // (4/2 · 3 + 9/3 · 1) / 4
  const EvalBatch plain[] = {{4, 2, 3}, {9, 3, 1}, {0, 0, 2}};
  EvalResult result = combine_eval_batches(plain, true);
  CHECK(result.loss == 2.25);
  CHECK(result.loss_per_target == 2.6);
  CHECK(result.samples == 6);
  CHECK(result.targets == 5);
  CHECK(result.batches == 3);

  const EvalBatch broken[] = {{4, 2, 3}, {nan, 3, 1}, {INFINITY, 1, 1}};
  result = combine_eval_batches(broken, true);
  CHECK(result.loss == 2);
  CHECK(result.loss_per_target == 2);
  CHECK(result.non_finite_batches == 2);
  result = combine_eval_batches(broken, false);
  CHECK(std::isnan(result.loss));
  CHECK(result.non_finite_batches == 2);

  const EvalBatch all_broken[] = {{nan, 3, 1}};
  CHECK(std::isnan(combine_eval_batches(all_broken, true).loss));
  const EvalBatch nothing[] = {{0, 0, 1}};
  CHECK(std::isnan(combine_eval_batches(nothing, true).loss));
}

TEST_CASE("what cannot be evaluated is refused") {
  const EvaluationGolden golden;
  CHECK(Evaluator::make(TokenDataset(TokenDataset::Kind::kPretrain, 0), {}).status().code() ==
        Code::kInvalidArgument);
  CHECK(Evaluator::make(golden.dataset, {.batch_size = 0}).status().message() ==
        "per_device_eval_batch_size=0: must be at least 1");
  const auto evaluator = Evaluator::make(golden.dataset, {.batch_size = 4}).value();
  CHECK(evaluator.batch_count() == 3);
  CHECK(evaluator.rounds(1) == 3);
  CHECK(evaluator.rounds(2) == 2);
  CHECK(evaluator.rounds(5) == 1);
  Rank rank(golden, 1);
  Activations small(golden.config, {.rows_max = 4, .length_max = 8, .training = false},
                    *rank.operators);
  auto links = collective::make_local_links({0}).value();
  auto alone = collective::make_cpu_communicator({.rank = 0, .world_size = 1, .generation = 1},
                                                 std::move(links[0]))
                   .value();
  ResidentUnits units(rank.model->layout(), rank.parameters, {});
  SystemClock clock;
  const auto refused =
      evaluator
          .run(*make_objective(), {.model = *rank.model, .units = units, .activations = small},
               *alone, clock)
          .status();
  CHECK(refused.code() == Code::kInvalidArgument);
  CHECK(refused.message().find("lower per_device_eval_batch_size") != std::string::npos);
}

TEST_CASE("the rate of matrix products is measured, and is none without a clock") {
  Arena arena(1);
  const auto operators = make_cpu_operators(arena);
  ModelConfig config;
  config.hidden_size = 96;
  config.intermediate_size = 256;
  SystemClock clock;
  const double rate = measure_gemm_rate(*operators, clock, config, Arithmetic::kFp32);
  CHECK(rate > 1e7);
  CHECK(rate < 1e14);
  CHECK(measure_gemm_rate(*operators, ManualClock(), config, Arithmetic::kBf16) == 0);
}

}  // namespace
}  // namespace troupe::train
