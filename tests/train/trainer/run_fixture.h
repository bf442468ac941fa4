#pragma once
// Runs of a tiny model with all ranks in one process, as threads.

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/collective/cpu_communicator.h"
#include "tests/support/test_data.h"
#include "tests/train/cuda/fake/fake_cuda.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/report/step_log.h"
#include "train/trainer/progress_memory.h"
#include "train/trainer/surviving_memory.h"
#include "train/trainer/training_run.h"

namespace troupe::train::tests {

inline ModelConfig tiny_model() {
  auto config = ModelConfig::parse(R"({
      "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
      "max_position_embeddings": 64, "tie_word_embeddings": true})",
                                   "config.json");
  return std::move(config).value();
}

inline RunBundle bundle_for(const std::string& output_dir, std::int64_t batch,
                            std::int64_t accumulation) {
  RunBundle bundle;
  bundle.model = tiny_model();
  bundle.companions["config.json"] = json::write(bundle.model.to_json());
  auto& config = bundle.config;
  config.model.train_from_scratch = true;
  config.method.stage = TrainingStage::kPretrain;
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
    // A pattern that can be learned: the next token is the last one plus a step
    // of the sample.
    TokenId id = static_cast<TokenId>(random.below(60));
    for (auto& token : ids) token = id = static_cast<TokenId>((id + 1 + sample % 3) % 63 + 1);
    dataset.append(ids);
  }
  bundle.dataset = std::move(dataset);
  return bundle;
}

// Stops a rank at a step as a death would, by aborting its communicator.
class TestObserver final : public TrainingObserver {
 public:
  void loaded(const TrainerLoaded& report) override {
    load = report;
    loaded_step = report.step;
  }
  void step_done(const StepRecord& record) override {
    ++steps_done;
    if (record.step + 1 == pause_after) pauses = true;
  }
  void step_finished(const StepRecord& record, std::optional<double>) override {
    if (record.step == abort_after) communicator->abort(error(Code::kUnavailable, "test"));
  }
  void evaluated(const EvalResult& result, std::int64_t, bool) override {
    eval_losses.push_back(result.loss);
  }
  void saving(std::int64_t) override {}
  void model_held(const std::string& folder, const Status&) override { held_in.push_back(folder); }
  std::optional<std::string> save_to() override { return std::exchange(named_folder, {}); }
  void model_saved(const std::string& folder) override { saved_to = folder; }
  void checkpoint_failed(std::int64_t step, const Status& cause) override {
    failed.push_back(step);
    warnings.push_back(cause.to_string());
  }
  void checkpoint_written(std::int64_t step, const std::string&) override { saved = step; }
  void checkpoint_abandoned(std::int64_t step, const std::string&) override { abandoned = step; }
  void notice(const std::string& text) override { notices.push_back(text); }
  bool world_changes() const override { return elastic; }
  std::optional<bool> safe_before(bool now) override { return std::exchange(safe, now); }
  void warning(const std::string& text) override { warnings.push_back(text); }
  std::optional<std::string> data_wish() override {
    if (!wish_at || steps_done < wish_at->first) return std::nullopt;
    return wish_at->second;
  }
  void data_wish_done(const std::string& arguments, const Status& outcome) override {
    if (!outcome.ok()) warnings.push_back(outcome.to_string());
    wishes_done.push_back(arguments);
    wish_at.reset();
  }
  void between_steps(const TrainingView& view) override {
    if (look) look(view);
  }
  bool stop_requested() override { return false; }
  bool save_and_stop_requested() override { return save_and_stop; }
  bool pause_requested() override { return pauses; }

  bool elastic = false;
  std::optional<bool> safe;
  std::int64_t loaded_step = -1;
  std::int64_t saved = -1;
  std::int64_t abandoned = -1;
  std::int64_t abort_after = -1;
  std::int64_t pause_after = -1;  // the step after which all leave for another world
  bool pauses = false;
  bool save_and_stop = false;
  collective::Communicator* communicator = nullptr;
  TrainerLoaded load;
  int steps_done = 0;
  std::function<void(const TrainingView&)> look;       // between steps
  std::optional<std::pair<int, std::string>> wish_at;  // after so many steps
  std::vector<std::string> wishes_done;
  std::vector<double> eval_losses;
  std::vector<std::string> notices;
  std::vector<std::int64_t> failed;
  std::vector<std::string> held_in;
  std::optional<std::string> named_folder;
  std::string saved_to;
  std::vector<std::string> warnings;
};

struct Ranks {
  PosixFileSystem files;
  SystemClock clock;
  // By rank: what survives, and what a process has.
  std::vector<std::unique_ptr<ProcessMemory>> memories;
  std::vector<std::unique_ptr<ProgressMemory>> progress;
  std::vector<std::unique_ptr<ProgressRecorder>> recorders;
  std::vector<TestObserver> observers;
  std::vector<std::unique_ptr<TrainingRun>> runs;
  // By rank: the machine that it is on; empty: all are on one.
  std::vector<std::string> machines;
  // Of the next process to start: what a run in the world before gave.
  CarriedOver carried;
};

// A run for tests: what differs from the default one.
struct RunChange {
  int world = 2;
  int threads = 1;
  std::int64_t batch = 2;
  std::int64_t accumulation = 1;
  std::string resume = "";
  bool overlaps = false;
  std::function<void(RunBundle&)> change = {};
  // On so many devices of the tests' GPU, which ranks take in turns; 0: on the CPU.
  int devices = 0;
  bool fp8 = false;  // there
  GraphOptions::Use graphs = GraphOptions::Use::kNever;
  TrainingParts parts = {};
};

inline ComputeChoice compute_of(const RunChange& change, int rank) {
  if (change.devices == 0) return {};
  return {.kind = ComputeKind::kCuda,
          .index = rank % change.devices,
          .fp8 = change.fp8,
          .graphs = change.graphs,
          .library = CudaLibrary::over(troupe::tests::fake_cuda_table())};
}

// The process of a rank: what was one before is gone, its memory stays.
inline void start_rank(Ranks& ranks, int rank, const std::string& output_dir,
                       const RunChange& change) {
  const auto at = static_cast<std::size_t>(rank);
  RunBundle bundle = bundle_for(output_dir, change.batch, change.accumulation);
  if (change.change) change.change(bundle);
  ranks.runs[at].reset();
  auto run = TrainingRun::create(ranks.files, ranks.clock, Logger::discard(), std::move(bundle),
                                 {.run = "test",
                                  .world_size = change.world,
                                  .threads = change.threads,
                                  .overlaps = change.overlaps,
                                  .resume_path = change.resume,
                                  .compute = compute_of(change, rank),
                                  .parts = change.parts},
                                 *ranks.recorders[at], std::exchange(ranks.carried, {}));
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  ranks.runs[at] = std::move(*run);
  REQUIRE(ranks.runs[at]->take_rank(rank, *ranks.memories[at]).ok());
}

inline std::unique_ptr<Ranks> make_ranks(const std::string& output_dir, const RunChange& change) {
  auto ranks = std::make_unique<Ranks>();
  ranks->observers.resize(static_cast<std::size_t>(change.world));
  ranks->runs.resize(static_cast<std::size_t>(change.world));
  for (int rank = 0; rank < change.world; ++rank) {
    ranks->memories.push_back(std::make_unique<ProcessMemory>());
    ranks->progress.push_back(std::make_unique<ProgressMemory>());
    ranks->recorders.push_back(
        std::make_unique<ProgressRecorder>(ranks->progress.back()->record()));
    start_rank(*ranks, rank, output_dir, change);
  }
  return ranks;
}

using RankWorld = std::shared_ptr<collective::Communicator>;

// All ranks at once, each on a thread that calls `body(rank, its communicator)`. Who fails takes
// the others along.
template <typename Body>
std::vector<Status> run_ranks(Ranks& ranks, std::uint64_t generation, Body body) {
  const auto world = ranks.runs.size();
  auto links = collective::make_local_links(std::vector<int>(world, 0)).value();
  std::vector<Status> results(world);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto made = collective::make_cpu_communicator({.rank = static_cast<int>(rank),
                                                     .world_size = static_cast<int>(world),
                                                     .generation = generation},
                                                    std::move(links[rank]));
      if (!made.ok()) {
        results[rank] = made.status();
        return;
      }
      const RankWorld communicator = std::move(*made);
      ranks.observers[rank].communicator = communicator.get();
      results[rank] = body(rank, communicator);
      if (!results[rank].ok()) communicator->abort(results[rank]);
    });
  }
  for (auto& thread : threads) thread.join();
  return results;
}

// As a trainer does it.
inline Status run_rank(Ranks& ranks, std::size_t rank, const RankWorld& world,
                       std::uint64_t generation,
                       GenerationPurpose purpose = GenerationPurpose::kTrain) {
  TrainingRun& run = *ranks.runs[rank];
  const std::string machine = ranks.machines.empty() ? "here" : ranks.machines[rank];
  const GenerationCompute compute =
      TROUPE_TRY(run.join(world, {.node = "here", .machine = machine}));
  TROUPE_RETURN_IF_ERROR(run.run_generation(compute, generation, ranks.observers[rank], purpose));
  return compute.device ? compute.device->end(Deadline::after(std::chrono::seconds(30))) : Status();
}

inline std::vector<Status> run_generation(Ranks& ranks, std::uint64_t generation) {
  return run_ranks(ranks, generation, [&](std::size_t rank, const RankWorld& world) {
    return run_rank(ranks, rank, world, generation);
  });
}

// What a test kills a rank with: its loop's stack unwinds, its memory stays as it is.
struct KilledHere {};

// Counts points, and kills at one of them.
class Killer final : public PointObserver {
 public:
  void reached(const Point& point) override {
    stages.insert(stage_name(point.stage));
    if (++count == kill_at) throw KilledHere{};
  }
  std::int64_t count = 0;
  std::int64_t kill_at = -1;
  std::set<std::string_view> stages;
};

// One generation, in which ranks may die; who died.
inline std::vector<bool> run_killed(Ranks& ranks, std::uint64_t generation,
                                    std::vector<Killer>& killers) {
  std::vector<int> died(ranks.runs.size(), 0);
  const auto results =
      run_ranks(ranks, generation, [&](std::size_t rank, const RankWorld& world) -> Status {
        Status status;
        ranks.recorders[rank]->observe(&killers[rank]);
        try {
          status = run_rank(ranks, rank, world, generation);
        } catch (const KilledHere&) {
          died[rank] = 1;
          status = error(Code::kUnavailable, "killed");
        }
        ranks.recorders[rank]->observe(nullptr);
        return status;
      });
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    // Whoever lives ends well, or because somebody died.
    const bool some_died = std::find(died.begin(), died.end(), 1) != died.end();
    CHECK_MESSAGE((results[rank].ok() || some_died), results[rank].to_string());
  }
  return {died.begin(), died.end()};
}

inline std::string file(const std::string& path) {
  PosixFileSystem files;
  return files.read(path, 1 << 20).value_or("(absent)");
}

inline void train(const std::string& output_dir, const RunChange& change) {
  auto ranks = make_ranks(output_dir, change);
  for (const Status& status : run_generation(*ranks, 1)) {
    REQUIRE_MESSAGE(status.ok(), status.to_string());
  }
}

// The same, but that the generation is lost behind the third step, with the process of `rank`,
// which must go on from memory.
inline void train_struck(const std::string& output_dir, const RunChange& change, int rank) {
  auto ranks = make_ranks(output_dir, change);
  TestObserver& observer = ranks->observers[static_cast<std::size_t>(rank)];
  observer.abort_after = 3;
  run_generation(*ranks, 1);
  start_rank(*ranks, rank, output_dir, change);
  observer.abort_after = -1;
  for (const Status& status : run_generation(*ranks, 2))
    REQUIRE_MESSAGE(status.ok(), status.to_string());
  CHECK(observer.load.how == LoadedFrom::kMemory);
}

// What equal runs have in common, to the last bit.
inline std::string step_lines(const std::string& output_dir) {
  return strip_timings(file(output_dir + "/steps.jsonl"));
}

inline std::vector<StepRecord> steps(const std::string& output_dir) {
  PosixFileSystem files;
  return read_steps(files, output_dir + "/steps.jsonl").value();
}

}  // namespace troupe::train::tests
