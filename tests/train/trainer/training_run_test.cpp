#include "train/trainer/training_run.h"

#include "tests/train/trainer/run_fixture.h"

namespace troupe::train::tests {
namespace {

TEST_CASE(
    "losses fall, and world sizes 1, 2, 4 with the same global batch "
    "give the same losses") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("w1"), {.world = 1, .threads = 1, .batch = 4});
  train(dir.file("w2"), {.world = 2, .threads = 1, .batch = 2});
  train(dir.file("w4"), {.world = 4, .threads = 1, .batch = 1});
  train(dir.file("g2"), {.world = 1, .threads = 1, .batch = 2, .accumulation = 2});
  const auto one = steps(dir.file("w1"));
  REQUIRE(one.size() == 12);
  CHECK(one.back().loss < 0.85 * one.front().loss);
  for (const char* other : {"w2", "w4"}) {
    const auto more = steps(dir.file(other));
    REQUIRE(more.size() == one.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      CHECK(more[i].loss == doctest::Approx(one[i].loss).epsilon(1e-5));
      CHECK(more[i].grad_norm == doctest::Approx(one[i].grad_norm).epsilon(1e-4));
    }
  }
  CHECK(steps(dir.file("g2"))[0].loss == doctest::Approx(one[0].loss).epsilon(1e-5));
}

TEST_CASE("the same run gives equal files, with one thread or two") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("a"), {.world = 2, .threads = 1, .batch = 2, .accumulation = 2});
  train(dir.file("b"), {.world = 2, .threads = 1, .batch = 2, .accumulation = 2});
  train(dir.file("c"), {.world = 2, .threads = 2, .batch = 2, .accumulation = 2});
  const std::string weights = file(dir.file("a/model.safetensors"));
  CHECK(weights.size() > 1000);
  CHECK(weights == file(dir.file("b/model.safetensors")));
  CHECK(weights == file(dir.file("c/model.safetensors")));
  CHECK(step_lines(dir.file("a")) == step_lines(dir.file("b")));
}

TEST_CASE("the time of a step by operator, where it is asked for") {
  troupe::tests::TemporaryDirectory dir;
  const auto ask = [](RunBundle& bundle) { bundle.config.troupe.operator_times = true; };
  train(dir.file("plain"), {.world = 2, .threads = 1, .batch = 2});
  train(dir.file("timed"), {.world = 2, .threads = 1, .batch = 2, .change = ask});
  for (const StepRecord& step : steps(dir.file("plain"))) CHECK(step.operators.empty());
  for (const StepRecord& step : steps(dir.file("timed"))) {
    std::map<std::string, double> parts;
    double sum = 0;
    for (const auto& [name, seconds] : step.operators) {
      CHECK_MESSAGE(parts.emplace(name, seconds).second, name);
      sum += seconds;
    }
    for (const char* part : {"gemm nt", "gemm nn", "gemm tn", "head gemm nt", "attention_backward",
                             "head cross_entropy", "optimizer", "norm", "gradient_done"})
      CHECK_MESSAGE(parts[part] > 0, part);
    // Nothing is counted twice. All of it lies within the step but for what followed the step
    // before
    // ("finished") and, on a loaded machine, moments between two readings of the clock.
    CHECK(sum - parts["finished"] <= 1.5 * step.seconds.total());
  }
  CHECK(step_lines(dir.file("timed")) == step_lines(dir.file("plain")));
}

TEST_CASE("a lost generation goes on from memory and ends bit for bit as if undisturbed") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("oracle"), {.world = 2, .threads = 1, .batch = 2});
  auto ranks = make_ranks(dir.file("out"), {.world = 2, .threads = 1, .batch = 2});
  ranks->observers[0].abort_after = 8;
  for (const Status& status : run_generation(*ranks, 1)) CHECK(!status.ok());
  CHECK(ranks->observers[0].saved == 5);
  ranks->observers[0].abort_after = -1;
  for (const Status& status : run_generation(*ranks, 2)) {
    REQUIRE_MESSAGE(status.ok(), status.to_string());
  }
  for (const auto& observer : ranks->observers) {
    CHECK(observer.load.how == LoadedFrom::kMemory);
    CHECK(observer.load.step >= 8);
  }
  CHECK(file(dir.file("out/model.safetensors")) == file(dir.file("oracle/model.safetensors")));
  CHECK(step_lines(dir.file("out")) == step_lines(dir.file("oracle")));
}

TEST_CASE("memory lost before any checkpoint: again from the initial weights") {
  troupe::tests::TemporaryDirectory dir;
  const RunChange change{.world = 2, .threads = 1, .batch = 2};
  train(dir.file("oracle"), change);
  auto ranks = make_ranks(dir.file("out"), change);
  ranks->observers[0].abort_after = 3;
  run_generation(*ranks, 1);
  ranks->observers[0].abort_after = -1;
  ranks->memories[0]->forget("state");
  start_rank(*ranks, 0, dir.file("out"), change);
  for (const Status& status : run_generation(*ranks, 2)) REQUIRE(status.ok());
  CHECK(ranks->observers[1].loaded_step == 0);
  CHECK(ranks->observers[1].load.how == LoadedFrom::kInitial);
  CHECK(file(dir.file("out/model.safetensors")) == file(dir.file("oracle/model.safetensors")));
}

TEST_CASE("a new run resumes a checkpoint at another world size") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("oracle"), {.world = 1, .threads = 1, .batch = 4});
  auto first = make_ranks(dir.file("out"), {.world = 2, .threads = 1, .batch = 2});
  first->observers[0].abort_after = 6;
  run_generation(*first, 1);
  auto second = make_ranks(dir.file("out"), {.world = 4,
                                             .threads = 1,
                                             .batch = 1,
                                             .accumulation = 1,
                                             .resume = dir.file("out/checkpoint-5")});
  for (const Status& status : run_generation(*second, 1)) REQUIRE(status.ok());
  const auto expected = steps(dir.file("oracle"));
  const auto got = steps(dir.file("out"));
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].loss == doctest::Approx(expected[i].loss).epsilon(1e-5));
  }
}

TEST_CASE("an optimizer that starts anew corrects its moments from the begin") {
  troupe::tests::TemporaryDirectory dir;
  // One sample over and over and one rate, so that a step depends on parameters and moments alone.
  const auto change = [&](std::int64_t steps, const std::string& from) {
    return [=](RunBundle& bundle) {
      TokenDataset dataset(TokenDataset::Kind::kPretrain, 0);
      for (int i = 0; i < 40; ++i) dataset.append(std::vector<TokenId>(16, 5));
      bundle.dataset = std::move(dataset);
      bundle.config.training.lr_scheduler_type = "constant";
      bundle.config.training.max_steps = steps;
      bundle.config.training.save_only_model = true;
      if (from.empty()) return;
      bundle.config.model.train_from_scratch = false;
      bundle.config.model.model_name_or_path = from;
    };
  };
  train(dir.file("first"), {.change = change(5, "")});
  const std::string weights = dir.file("first/checkpoint-5");
  train(dir.file("resumed"), {.resume = weights, .change = change(6, "")});
  train(dir.file("begun"), {.change = change(1, weights)});
  CHECK(steps(dir.file("resumed")).back().step == 6);
  CHECK(file(dir.file("resumed/model.safetensors")) == file(dir.file("begun/model.safetensors")));
}

TEST_CASE("the outputs of a run are complete") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("out"), {.world = 2, .threads = 1, .batch = 2});
  PosixFileSystem files;
  for (const char* name :
       {"model.safetensors", "config.json", "trainer_state.json", "trainer_log.jsonl",
        "train_results.json", "all_results.json", "steps.jsonl", "checkpoint-12/model.safetensors",
        "checkpoint-10/optimizer-00001-of-00002.safetensors",
        "checkpoint-5/troupe_checkpoint.json"}) {
    CAPTURE(name);
    CHECK(files.exists(dir.file(std::string("out/") + name)));
  }
  CHECK(file(dir.file("out/checkpoint-12/model.safetensors")) ==
        file(dir.file("out/model.safetensors")));
}

}  // namespace
}  // namespace troupe::train::tests
