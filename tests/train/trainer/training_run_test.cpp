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
    for (const auto& [name, seconds] : step.operators)
      CHECK_MESSAGE(parts.emplace(name, seconds).second, name);
    for (const char* part : {"gemm nt", "gemm nn", "gemm tn", "head gemm nt", "attention_backward",
                             "head cross_entropy", "optimizer", "norm", "gradient_done"})
      CHECK_MESSAGE(parts[part] > 0, part);
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
  // (Where others hold the same state nothing is loaded.)
  const RunChange change{.world = 2, .threads = 1, .batch = 2, .change = [](RunBundle& bundle) {
                           bundle.config.sharding.strategy = "zero1";
                         }};
  train(dir.file("oracle"), change);
  auto ranks = make_ranks(dir.file("out"), change);
  ranks->observers[0].abort_after = 3;
  run_generation(*ranks, 1);
  ranks->observers[0].abort_after = -1;
  CHECK(ranks->memories[0]->forget("state").ok());
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

// Two epochs of 40 samples, no two of the same length, so that what was trained on can be told.
void two_epochs(RunBundle& bundle) {
  TokenDataset dataset(TokenDataset::Kind::kPretrain, 0);
  for (int sample = 0; sample < 40; ++sample)
    dataset.append(std::vector<TokenId>(static_cast<std::size_t>(2 + sample), 1 + sample));
  bundle.dataset = std::move(dataset);
  bundle.config.training.max_steps = -1;
  bundle.config.training.num_train_epochs = 2;
  bundle.config.training.save_steps = 10;
  bundle.config.training.weight_decay = 0;
  bundle.config.training.warmup_ratio = 0.1;
}
constexpr std::int64_t kTokensOfEpoch = 40 * 2 + 40 * 39 / 2;

std::int64_t tokens_of(const std::vector<StepRecord>& steps) {
  std::int64_t sum = 0;
  for (const StepRecord& step : steps) sum += step.tokens;
  return sum;
}

TEST_CASE("a resume at another batch trains the samples that are left, each once") {
  troupe::tests::TemporaryDirectory dir;
  struct Batch {
    int world;
    std::int64_t batch, accumulation;
    std::int64_t steps_per_epoch() const {
      const std::int64_t samples = world * batch * accumulation;
      return (40 + samples - 1) / samples;
    }
  };
  struct Case {
    Batch before, after;
    std::int64_t from, total;
  };
  const Case cases[] = {
      {{1, 1, 1}, {4, 1, 1}, 10, 10 + 8 + 10},   // 30 samples are left of the epoch
      {{1, 1, 1}, {3, 1, 2}, 50, 50 + 5},        // 30 of the second one
      {{4, 1, 1}, {1, 1, 1}, 10, 10 + 40},       // an epoch is done
      {{2, 2, 1}, {1, 3, 1}, 10, 10 + 14},       // likewise, another batch
      {{2, 1, 1}, {2, 1, 3}, 10, 10 + 4 + 7},    // accumulation alone
      {{1, 1, 2}, {2, 1, 1}, 10, 10 + 10 + 20},  // the same samples in a step: nothing changes
  };
  int number = 0;
  for (const Case& one : cases) {
    CAPTURE(number);
    const std::string out = dir.file(fmt::format("out{}", number++));
    const RunChange before{.world = one.before.world,
                           .batch = one.before.batch,
                           .accumulation = one.before.accumulation,
                           .change = two_epochs};
    auto first = make_ranks(out, before);
    first->observers[0].abort_after = one.from + 1;
    run_generation(*first, 1);
    RunChange after{.world = one.after.world,
                    .batch = one.after.batch,
                    .accumulation = one.after.accumulation,
                    .resume = fmt::format("{}/checkpoint-{}", out, one.from),
                    .change = [](RunBundle& bundle) {
                      two_epochs(bundle);
                      bundle.config.training.save_strategy = IntervalStrategy::kNo;
                      // Ranks that have no sample left gather and reduce all the same.
                      bundle.config.sharding.strategy = "zero3";
                    }};
    auto second = make_ranks(out, after);
    // Lost in the midst, too: it goes on from memory with what is left.
    second->observers[0].abort_after = one.from + 2;
    run_generation(*second, 1);
    second->observers[0].abort_after = -1;
    for (const Status& status : run_generation(*second, 2))
      REQUIRE_MESSAGE(status.ok(), status.to_string());
    const auto got = steps(out);
    CHECK(std::ssize(got) == one.total);
    CHECK(tokens_of(got) == 2 * kTokensOfEpoch);
    const auto state = parse_trainer_state(file(out + "/trainer_state.json"), "x").value();
    CHECK(state.epoch == 2);
    CHECK(state.max_steps == one.total);
    CHECK(second->observers[0].notices.empty() ==
          (one.before.steps_per_epoch() == one.after.steps_per_epoch()));
    // The rate is that of a run that always had this batch, where it is at the same sample.
    const std::string fresh = out + "-fresh";
    after.resume.clear();
    train(fresh, after);
    const auto always = steps(fresh);
    const std::int64_t offset = one.total - std::ssize(always);
    for (std::int64_t i = one.from; i < one.total; ++i) {
      CHECK(got[static_cast<std::size_t>(i)].learning_rate ==
            always[static_cast<std::size_t>(i - offset)].learning_rate);
    }
  }
}

TEST_CASE("max_steps counts steps, of whatever batch") {
  troupe::tests::TemporaryDirectory dir;
  const auto change = [](RunBundle& bundle) {
    two_epochs(bundle);
    bundle.config.training.max_steps = 20;
  };
  auto first = make_ranks(dir.file("out"), {.world = 1, .batch = 1, .change = change});
  first->observers[0].abort_after = 11;
  run_generation(*first, 1);
  auto second = make_ranks(
      dir.file("out"),
      {.world = 2, .batch = 1, .resume = dir.file("out/checkpoint-10"), .change = change});
  for (const Status& status : run_generation(*second, 1)) REQUIRE(status.ok());
  const auto got = steps(dir.file("out"));
  CHECK(got.size() == 20);
  train(dir.file("fresh"), {.world = 1, .batch = 1, .change = change});
  const auto fresh = steps(dir.file("fresh"));
  for (std::size_t i = 0; i < 20; ++i) CHECK(got[i].learning_rate == fresh[i].learning_rate);
}

TEST_CASE("weights alone, and another program's, tell where their samples end") {
  troupe::tests::TemporaryDirectory dir;
  const auto change = [](RunBundle& bundle) {
    two_epochs(bundle);
    bundle.config.training.save_only_model = true;
  };
  auto first = make_ranks(dir.file("out"), {.world = 1, .batch = 1, .change = change});
  first->observers[0].abort_after = 31;
  run_generation(*first, 1);
  // Neither marker nor cursor: the epoch of trainer_state.json is what is left to go by.
  PosixFileSystem files;
  const std::string foreign = dir.file("foreign/checkpoint-30");
  REQUIRE(files.create_directories(foreign).ok());
  for (const char* name : {"config.json", "model.safetensors", "trainer_state.json"}) {
    const auto text = files.read(dir.file("out/checkpoint-30/") + name, 1 << 20).value();
    REQUIRE(write_file_atomically(files, join_path(foreign, name), text).ok());
  }
  for (const std::string& from : {dir.file("out/checkpoint-30"), foreign}) {
    CAPTURE(from);
    const std::string out = from.substr(0, from.rfind('/')) + "-resumed";
    train(out, {.world = 4, .batch = 1, .resume = from, .change = two_epochs});
    const auto got = steps(out);
    CHECK(got.back().step == 30 + 3 + 10);
    CHECK(std::ssize(got) == 13);
  }
  // An epoch that nobody reached says nothing; the run ends all the same, after the steps' samples.
  const std::string state = join_path(foreign, "trainer_state.json");
  auto told = parse_trainer_state(file(state), state).value();
  for (const double epoch : {1e18, 1e300}) {
    told.epoch = epoch;
    REQUIRE(write_file_atomically(files, state, trainer_state_text(told)).ok());
    const std::string out = dir.file(fmt::format("epoch-{}", epoch));
    train(out, {.world = 4, .batch = 1, .resume = foreign, .change = two_epochs});
    CHECK(files.exists(out + "/train_results.json"));
  }
}

TEST_CASE("a resume behind max_steps says where it ends: where it is") {
  troupe::tests::TemporaryDirectory dir;
  auto first = make_ranks(dir.file("out"), {.world = 1, .batch = 1, .change = two_epochs});
  first->observers[0].abort_after = 11;
  run_generation(*first, 1);
  auto second = make_ranks(dir.file("out"), {.world = 2,
                                             .batch = 1,
                                             .resume = dir.file("out/checkpoint-10"),
                                             .change = [](RunBundle& bundle) {
                                               two_epochs(bundle);
                                               bundle.config.training.max_steps = 4;
                                             }});
  for (const Status& status : run_generation(*second, 1)) REQUIRE(status.ok());
  REQUIRE(second->observers[0].notices.size() == 1);
  CHECK(second->observers[0].notices[0] ==
        "the 10 steps done so far come to 5 of this run's (samples in each: 2): the run ends after "
        "step 10");
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

TEST_CASE("SGD goes on from its checkpoints and from memory, and no optimizer from another's") {
  troupe::tests::TemporaryDirectory dir;
  const auto with = [](const std::string& optim) {
    return [optim](RunBundle& bundle) {
      two_epochs(bundle);
      bundle.config.training.optim = optim;
    };
  };
  for (const std::string optim : {"sgd", "adamw_torch"}) {
    CAPTURE(optim);
    const std::string out = dir.file(optim), other = optim == "sgd" ? "adamw_torch" : "sgd";
    train(out + "-whole", {.world = 2, .batch = 1, .change = with(optim)});
    auto first = make_ranks(out, {.world = 2, .batch = 1, .change = with(optim)});
    first->observers[0].abort_after = 11;
    run_generation(*first, 1);
    train(out + "-resumed",
          {.world = 2, .batch = 1, .resume = out + "/checkpoint-10", .change = with(optim)});
    CHECK(file(out + "-resumed/model.safetensors") == file(out + "-whole/model.safetensors"));
    // What was aborted goes on from memory.
    first->observers[0].abort_after = -1;
    for (const Status& status : run_generation(*first, 2)) REQUIRE(status.ok());
    CHECK(file(out + "/model.safetensors") == file(out + "-whole/model.safetensors"));
    auto refused = make_ranks(
        out + "-other",
        {.world = 2, .batch = 1, .resume = out + "/checkpoint-10", .change = with(other)});
    const std::string said = run_generation(*refused, 1)[0].to_string();
    CAPTURE(said);
    CHECK(said.find("/checkpoint-10 has the state of another optimizer") != std::string::npos);
    CHECK(said.find(optim == "sgd" ? "it keeps nothing" : "it keeps exp_avg, exp_avg_sq") !=
          std::string::npos);
    CHECK(said.find("(optim: " + optim) != std::string::npos);
  }
}

TEST_CASE("what is kept by block or by tensor is resumed, under another strategy, too") {
  troupe::tests::TemporaryDirectory dir;
  for (const char* optim : {"adamw_8bit", "galore"}) {
    CAPTURE(optim);
    const auto with = [&](const char* strategy) {
      return [optim, strategy](RunBundle& bundle) {
        two_epochs(bundle);
        bundle.config.sharding.strategy = strategy;
        bundle.config.optimizer.use_galore = std::string_view(optim) == "galore";
        bundle.config.optimizer.galore_rank = 4;
        if (!bundle.config.optimizer.use_galore) bundle.config.training.optim = optim;
      };
    };
    const std::string out = dir.file(optim);
    train(out + "-whole", {.world = 2, .batch = 1, .change = with("ddp")});
    auto first = make_ranks(out, {.world = 2, .batch = 1, .change = with("zero3")});
    first->observers[0].abort_after = 11;
    run_generation(*first, 1);
    train(out + "-resumed",
          {.world = 2, .batch = 1, .resume = out + "/checkpoint-10", .change = with("ddp")});
    CHECK(file(out + "-resumed/model.safetensors") == file(out + "-whole/model.safetensors"));
  }
}

TEST_CASE("losses above troupe.loss_limit in so many steps in a row end the run") {
  troupe::tests::TemporaryDirectory dir;
  auto ranks = make_ranks(dir.file("out"), {.change = [](RunBundle& bundle) {
                            bundle.config.troupe.loss_limit = 1e-3;
                            bundle.config.troupe.loss_limit_steps = 4;
                            bundle.config.training.save_steps = 3;
                          }});
  for (const Status& status : run_generation(*ranks, 1))
    REQUIRE_MESSAGE(status.ok(), status.to_string());
  const auto& said = ranks->observers[0].notices;
  REQUIRE(said.size() == 1);
  CHECK_MESSAGE(said[0] ==
                    "the run ends after step 4 of 12: 4 steps in a row had a loss above "
                    "0.001 (troupe.loss_limit)",
                said[0]);
  // From a checkpoint they are counted on.
  REQUIRE(ranks->files.exists(dir.file("out/checkpoint-3/scheduler.json")));
  CHECK(ranks->files.read(dir.file("out/checkpoint-3/scheduler.json"), 1 << 20)
            .value()
            .find("\"high_losses\": 3") != std::string::npos);
}

TEST_CASE("early stopping and the loading of the best model are said") {
  troupe::tests::TemporaryDirectory dir;
  auto ranks = make_ranks(dir.file("out"), {.change = [](RunBundle& bundle) {
                            // A rate of nothing: no evaluation is better than the first.
                            bundle.config.training.learning_rate = 0;
                            bundle.config.training.save_steps = 2;
                            auto& evaluation = bundle.config.evaluation;
                            evaluation.strategy = IntervalStrategy::kSteps;
                            evaluation.eval_steps = 2;
                            evaluation.early_stopping_steps = 2;
                            evaluation.load_best_model_at_end = true;
                            bundle.eval = bundle.dataset;
                            // Of data sets apart, one decides.
                            evaluation.eval_dataset = {"x", "y"};
                            evaluation.on_each_dataset = true;
                            evaluation.metric_for_best_model = "eval_y_loss";
                            bundle.eval_parts = {{"x", 1}, {"y", bundle.dataset.size() - 1}};
                          }});
  for (const Status& status : run_generation(*ranks, 1))
    REQUIRE_MESSAGE(status.ok(), status.to_string());
  const auto& said = ranks->observers[0].notices;
  REQUIRE(said.size() == 2);
  CHECK_MESSAGE(said[0].starts_with("early stopping after step 6 of 12: 2 evaluations in a row "
                                    "were no better than that of step 2 (eval_y_loss "),
                said[0]);
  CHECK_MESSAGE(
      said[1].starts_with("the best model, " + dir.file("out/checkpoint-2") + " (eval_y_loss "),
      said[1]);
  CHECK(ranks->observers[1].notices.empty());
  CHECK(ranks->observers[0].eval_losses.size() == 2 * 3);

  // Told to save and stop now, it has the parameters of one step and the moments of another.
  REQUIRE(ranks->files.remove_tree(dir.file("out/checkpoint-6")).ok());
  const auto saved = run_ranks(*ranks, 2, [&](std::size_t rank, const RankWorld& world) {
    return run_rank(*ranks, rank, world, 2, GenerationPurpose::kSave);
  });
  for (const Status& status : saved) {
    CHECK(status.code() == Code::kCancelled);
    CHECK_MESSAGE(status.message().find("its best model had taken the place of step 6's") !=
                      std::string::npos,
                  status.to_string());
  }
  CHECK_FALSE(ranks->files.exists(dir.file("out/checkpoint-6")));
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
