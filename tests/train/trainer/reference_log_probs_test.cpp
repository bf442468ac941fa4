// What a reference says, worked out before training: the run that it would be with a reference.

#include "train/trainer/reference_log_probs.h"

#include "tests/train/trainer/judged_fixture.h"
#include "train/checkpoint/weights.h"
#include "train/report/trainer_state.h"

namespace troupe::train::tests {
namespace {

struct Asking {
  std::string base;  // the model's folder
  std::string other = {};
  std::vector<std::string> said = {}, notes = {};

  // A run on the base, with a reference beside the model or with what it said before.
  RunChange change(const JudgedRun& run, bool before) {
    RunChange out = judged_change(run);
    out.change = [this, before, change = out.change](RunBundle& bundle) {
      change(bundle);
      bundle.config.model.train_from_scratch = false;
      bundle.config.model.model_name_or_path = base;
      if (!other.empty()) {
        bundle.config.method.ref_model = other;
        bundle.trainables.reference = Reference::kOther;
      }
      if (!before) return;
      bundle.trainables.reference = Reference::kNone;
      const std::lock_guard lock(mutex);  // each rank changes its own bundle
      const Status asked = ask(bundle);
      REQUIRE_MESSAGE(asked.ok(), asked.to_string());
      bundle = decode_bundle(encode_bundle(bundle)).value();
    };
    return out;
  }
  Status ask(RunBundle& bundle) {
    PosixFileSystem files;
    bundle.config.troupe.precompute_ref_log_probs = true;
    REQUIRE(files.create_directories(bundle.config.training.output_dir).ok());
    return add_reference_log_probs(
        files, bundle, 2, [this](const std::string& line) { said.push_back(line); }, notes);
  }
  std::mutex mutex;
};

json::Array history(const std::string& folder) {
  return parse_trainer_state(file(folder + "/trainer_state.json"), "trainer_state.json")
      .value()
      .log_history;
}

// A bundle of a run in `folder`, as the driver has it.
RunBundle asked_bundle(Asking& asking, const std::string& folder, const JudgedRun& run = {}) {
  RunBundle bundle = bundle_for(folder, 2, 1);
  asking.change(run, false).change(bundle);
  return bundle;
}

TEST_CASE("what the reference said before training is what a reference beside the model says") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("base"), {});
  train(dir.file("other"), {.change = [](RunBundle& bundle) { bundle.config.training.seed = 9; }});
  for (const JudgedRun& run :
       {JudgedRun{.lora = false}, JudgedRun{.strategy = "zero3"},
        JudgedRun{.lora = false, .strategy = "zero2", .loss = "ipo", .bf16 = true},
        JudgedRun{.stage = TrainingStage::kKto, .lora = false, .strategy = "zero3"}}) {
    for (const bool other : {false, true}) {
      CAPTURE(run.strategy);
      CAPTURE(static_cast<int>(run.stage));
      CAPTURE(other);
      troupe::tests::TemporaryDirectory runs;
      Asking asking{.base = dir.file("base"), .other = other ? dir.file("other") : ""};
      train(runs.file("beside"), asking.change(run, false));
      train_struck(runs.file("before"), asking.change(run, true), 1);
      CHECK(asking.said.size() == 1);  // once, for all ranks and both of their lives
      const auto beside = history(runs.file("beside")), before = history(runs.file("before"));
      REQUIRE(beside.size() == before.size());
      int compared = 0;
      for (std::size_t i = 0; i < beside.size(); ++i) {
        for (const char* name : {"loss", "eval_loss", "rewards/chosen", "eval_rewards/margins"}) {
          const auto expected = json::find_number(beside[i], name);
          REQUIRE(json::find_number(before[i], name).has_value() == expected.has_value());
          if (!expected) continue;
          CHECK(*json::find_number(before[i], name) == doctest::Approx(*expected).epsilon(2e-5));
          ++compared;
        }
      }
      CHECK(compared > 6);
    }
  }
}

TEST_CASE("the answers are kept, and asked for again where they would be others") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("base"), {});
  Asking asking{.base = dir.file("base")};
  RunBundle bundle = asked_bundle(asking, dir.file("run"));
  REQUIRE(asking.ask(bundle).ok());
  REQUIRE(asking.said.size() == 1);
  REQUIRE(bundle.reference);
  // Labels that are not trained on have none, the others one each.
  const auto labels = bundle.dataset.columns().labels;
  REQUIRE(bundle.reference->size() == labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i)
    CHECK((labels[i] == kIgnoredLabel) == ((*bundle.reference)[i] == 0));

  const auto asks_again = [&](RunBundle& again) {
    const std::size_t before = asking.said.size();
    const Status asked = asking.ask(again);
    REQUIRE_MESSAGE(asked.ok(), asked.to_string());
    return asking.said.size() > before;
  };
  RunBundle same = asked_bundle(asking, dir.file("run"));
  CHECK_FALSE(asks_again(same));
  CHECK(*same.reference == *bundle.reference);
  CHECK(*same.eval_reference == *bundle.eval_reference);

  const std::string path = dir.file("run") + "/" + kReferenceFile;
  const std::string kept = file(path);
  for (const std::size_t at : {std::size_t{9}, kept.size() / 2, kept.size() - 1}) {
    std::string damaged = kept;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    std::ofstream(path, std::ios::binary) << damaged;
    RunBundle again = asked_bundle(asking, dir.file("run"));
    CHECK(asks_again(again));
    CHECK(*again.reference == *bundle.reference);
  }
  std::ofstream(path, std::ios::binary) << kept.substr(0, kept.size() / 3);
  RunBundle cut = asked_bundle(asking, dir.file("run"));
  CHECK(asks_again(cut));

  RunBundle narrow = asked_bundle(asking, dir.file("run"), {.bf16 = true});
  CHECK(asks_again(narrow));
  CHECK(*narrow.reference != *bundle.reference);
  RunBundle judged = asked_bundle(asking, dir.file("run"), {.stage = TrainingStage::kKto});
  CHECK(asks_again(judged));
  // Other weights under the same name.
  train(dir.file("base"), {.change = [](RunBundle& it) { it.config.training.seed = 9; }});
  RunBundle renewed = asked_bundle(asking, dir.file("run"));
  CHECK(asks_again(renewed));
  CHECK(*renewed.reference != *bundle.reference);
}

TEST_CASE("in fp16 the policy begins as its reference, too") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("base"), {});
  Asking asking{.base = dir.file("base")};
  RunChange change = asking.change({.lora = false}, true);
  change.change = [change = change.change](RunBundle& bundle) {
    bundle.config.model.compute = Precision::kFloat16;
    change(bundle);
  };
  train(dir.file("run"), change);
  const auto records = steps(dir.file("run"));
  const json::Value* metrics = records[0].extra.if_contains("metrics");
  REQUIRE(metrics);
  CHECK(json::find(*metrics, "rewards/chosen")->as_array()[0].to_number<double>() ==
        doctest::Approx(0).epsilon(1e-6));
}

TEST_CASE("stages without a reference ask nobody") {
  troupe::tests::TemporaryDirectory dir;
  Asking asking{.base = dir.file("nowhere")};
  for (const char* loss : {"orpo", "simpo"}) {
    RunBundle bundle = asked_bundle(asking, dir.file("run"), {.loss = loss});
    CHECK(asking.ask(bundle).ok());
    CHECK_FALSE(bundle.reference);
  }
  CHECK(asking.said.empty());
}

TEST_CASE("what cannot be kept is told, and used") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("base"), {});
  Asking asking{.base = dir.file("base")};
  RunBundle bundle = asked_bundle(asking, dir.file("run"));
  PosixFileSystem files;
  REQUIRE(files.create_directories(dir.file("run") + "/" + kReferenceFile).ok());
  CHECK(asking.ask(bundle).ok());
  CHECK(bundle.reference);
  REQUIRE(asking.notes.size() == 1);
  CHECK(asking.notes[0].starts_with("warning: "));
}

TEST_CASE("what nobody can ask the reference about is refused") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("base"), {});
  Asking asking{.base = dir.file("base")};
  RunBundle grown = asked_bundle(asking, dir.file("run"));
  grown.grown = GrownVocabulary{};
  const Status refused = asking.ask(grown);
  CHECK(refused.context("key") == "troupe.precompute_ref_log_probs");
  RunBundle missing = asked_bundle(asking, dir.file("run"));
  asking.base = dir.file("nowhere");
  missing.config.model.model_name_or_path = asking.base;
  CHECK(asking.ask(missing).code() == Code::kNotFound);
}

}  // namespace
}  // namespace troupe::train::tests
