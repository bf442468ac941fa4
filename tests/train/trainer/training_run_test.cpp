#include "train/trainer/training_run.h"

#include <doctest/doctest.h>

#include <map>
#include <thread>

#include "runtime/base/random.h"
#include "runtime/collective/cpu_communicator.h"
#include "tests/support/test_data.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/report/step_log.h"

namespace troupe::train {
namespace {

ModelConfig tiny_model() {
  auto config = ModelConfig::parse(R"({
      "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
      "max_position_embeddings": 64, "tie_word_embeddings": true})",
                                   "config.json");
  return std::move(config).value();
}

RunBundle bundle_for(const std::string& output_dir, std::int64_t batch, std::int64_t accumulation) {
  RunBundle bundle;
  bundle.model = tiny_model();
  bundle.companions["config.json"] = json::write(bundle.model.to_json());
  auto& config = bundle.config;
  config.model.train_from_scratch = true;
  config.method.stage = Stage::kPretrain;
  config.data.packing = true;
  config.training.output_dir = output_dir;
  config.training.per_device_train_batch_size = batch;
  config.training.gradient_accumulation_steps = accumulation;
  config.training.max_steps = 12;
  config.training.learning_rate = 1e-2;
  config.training.weight_decay = 0.1;
  config.training.logging_steps = 4;
  config.training.save_steps = 5;
  TokenDataset dataset(TokenDataset::Kind::kPretrain, 0);
  SeededRandom random(3);
  for (int sample = 0; sample < 40; ++sample) {
    std::vector<TokenId> ids(16);
    // A pattern that can be learned: the next token is the last one plus a step of the sample.
    TokenId id = static_cast<TokenId>(random.below(60));
    for (auto& token : ids) token = id = static_cast<TokenId>((id + 1 + sample % 3) % 63 + 1);
    dataset.append(ids);
  }
  bundle.dataset = std::move(dataset);
  return bundle;
}

// Counts phases; stops a rank at a step as a death would, by aborting its communicator.
class TestObserver final : public TrainingObserver {
 public:
  void loaded(std::int64_t step) override { loaded_step = step; }
  void phase(std::int64_t, ChaosPhase phase) override { ++phases[static_cast<int>(phase)]; }
  void step_finished(const StepRecord& record, bool) override {
    if (record.step == abort_after) communicator->abort(error(Code::kUnavailable, "test"));
  }
  void checkpoint_written(std::int64_t step, const std::string&) override { saved = step; }
  void warning(const std::string& text) override { warnings.push_back(text); }
  bool stop_requested() override { return false; }
  bool save_and_stop_requested() override { return save_and_stop; }

  std::int64_t loaded_step = -1;
  std::int64_t saved = -1;
  std::int64_t abort_after = -1;
  bool save_and_stop = false;
  collective::Communicator* communicator = nullptr;
  std::map<int, int> phases;
  std::vector<std::string> warnings;
};

struct Ranks {
  std::vector<std::unique_ptr<TrainingRun>> runs;
  std::vector<TestObserver> observers;
  PosixFileSystem files;
  SystemClock clock;
};

std::unique_ptr<Ranks> make_ranks(const std::string& output_dir, int world, int threads,
                                  std::int64_t batch, std::int64_t accumulation = 1,
                                  const std::string& resume = "") {
  auto ranks = std::make_unique<Ranks>();
  ranks->observers.resize(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    ranks->runs.push_back(TrainingRun::create(ranks->files, ranks->clock, Logger::discard(),
                                              bundle_for(output_dir, batch, accumulation),
                                              {.run = "test",
                                               .rank = rank,
                                               .world_size = world,
                                               .threads = threads,
                                               .resume_path = resume})
                              .value());
  }
  return ranks;
}

std::vector<Status> run_generation(Ranks& ranks, std::uint64_t generation) {
  const auto world = ranks.runs.size();
  auto links = collective::make_local_links(std::vector<int>(world, 0)).value();
  std::vector<Status> results(world);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto communicator = collective::make_cpu_communicator({.rank = static_cast<int>(rank),
                                                             .world_size = static_cast<int>(world),
                                                             .generation = generation},
                                                            std::move(links[rank]));
      if (!communicator.ok()) {
        results[rank] = communicator.status();
        return;
      }
      ranks.observers[rank].communicator = communicator->get();
      results[rank] =
          ranks.runs[rank]->run_generation(**communicator, generation, ranks.observers[rank]);
      if (!results[rank].ok()) (*communicator)->abort(results[rank]);
    });
  }
  for (auto& thread : threads) thread.join();
  return results;
}

std::string file(const std::string& path) {
  PosixFileSystem files;
  return files.read(path, 1 << 20).value_or("(absent)");
}

void train(const std::string& output_dir, int world, int threads, std::int64_t batch,
           std::int64_t accumulation = 1) {
  auto ranks = make_ranks(output_dir, world, threads, batch, accumulation);
  for (const Status& status : run_generation(*ranks, 1)) {
    REQUIRE_MESSAGE(status.ok(), status.to_string());
  }
}

// What equal runs have in common, to the last bit.
std::string step_lines(const std::string& output_dir) {
  return strip_timings(file(output_dir + "/steps.jsonl"));
}

std::vector<StepRecord> steps(const std::string& output_dir) {
  PosixFileSystem files;
  return read_steps(files, output_dir + "/steps.jsonl").value();
}

TEST_CASE("losses fall, and world sizes 1, 2, 4 with the same global batch give the same losses") {
  tests::TemporaryDirectory dir;
  train(dir.file("w1"), 1, 1, 4);
  train(dir.file("w2"), 2, 1, 2);
  train(dir.file("w4"), 4, 1, 1);
  train(dir.file("g2"), 1, 1, 2, 2);
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
  tests::TemporaryDirectory dir;
  train(dir.file("a"), 2, 1, 2, 2);
  train(dir.file("b"), 2, 1, 2, 2);
  train(dir.file("c"), 2, 2, 2, 2);
  const std::string weights = file(dir.file("a/model.safetensors"));
  CHECK(weights.size() > 1000);
  CHECK(weights == file(dir.file("b/model.safetensors")));
  CHECK(weights == file(dir.file("c/model.safetensors")));
  CHECK(step_lines(dir.file("a")) == step_lines(dir.file("b")));
}

TEST_CASE("a lost generation reloads the last checkpoint and ends bit for bit as if undisturbed") {
  tests::TemporaryDirectory dir;
  train(dir.file("oracle"), 2, 1, 2);
  auto ranks = make_ranks(dir.file("out"), 2, 1, 2);
  ranks->observers[0].abort_after = 8;
  for (const Status& status : run_generation(*ranks, 1)) CHECK(!status.ok());
  CHECK(ranks->observers[0].saved == 5);
  ranks->observers[0].abort_after = -1;
  for (const Status& status : run_generation(*ranks, 2)) {
    REQUIRE_MESSAGE(status.ok(), status.to_string());
  }
  CHECK(ranks->observers[0].loaded_step == 5);
  CHECK(ranks->observers[1].loaded_step == 5);
  CHECK(file(dir.file("out/model.safetensors")) == file(dir.file("oracle/model.safetensors")));
  CHECK(step_lines(dir.file("out")) == step_lines(dir.file("oracle")));
}

TEST_CASE("a lost generation before any checkpoint begins again from the initial weights") {
  tests::TemporaryDirectory dir;
  train(dir.file("oracle"), 2, 1, 2);
  auto ranks = make_ranks(dir.file("out"), 2, 1, 2);
  ranks->observers[0].abort_after = 3;
  run_generation(*ranks, 1);
  ranks->observers[0].abort_after = -1;
  for (const Status& status : run_generation(*ranks, 2)) REQUIRE(status.ok());
  CHECK(ranks->observers[1].loaded_step == 0);
  CHECK(file(dir.file("out/model.safetensors")) == file(dir.file("oracle/model.safetensors")));
}

TEST_CASE("a new run resumes a checkpoint at another world size") {
  tests::TemporaryDirectory dir;
  train(dir.file("oracle"), 1, 1, 4);
  auto first = make_ranks(dir.file("out"), 2, 1, 2);
  first->observers[0].abort_after = 6;
  run_generation(*first, 1);
  auto second = make_ranks(dir.file("out"), 4, 1, 1, 1, dir.file("out/checkpoint-5"));
  for (const Status& status : run_generation(*second, 1)) REQUIRE(status.ok());
  const auto expected = steps(dir.file("oracle"));
  const auto got = steps(dir.file("out"));
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].loss == doctest::Approx(expected[i].loss).epsilon(1e-5));
  }
}

TEST_CASE("the outputs of a run are complete") {
  tests::TemporaryDirectory dir;
  train(dir.file("out"), 2, 1, 2);
  PosixFileSystem files;
  for (const char* name :
       {"model.safetensors", "config.json", "trainer_state.json", "trainer_log.jsonl",
        "train_results.json", "all_results.json", "steps.jsonl", "checkpoint-12/model.safetensors",
        "checkpoint-10/optimizer.safetensors", "checkpoint-5/troupe_checkpoint.json"}) {
    CAPTURE(name);
    CHECK(files.exists(dir.file(std::string("out/") + name)));
  }
  CHECK(file(dir.file("out/checkpoint-12/model.safetensors")) ==
        file(dir.file("out/model.safetensors")));
}

}  // namespace
}  // namespace troupe::train
