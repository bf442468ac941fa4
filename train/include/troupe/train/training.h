#pragma once
// Training as a program's own: a configuration, a model, data, and parts of the program's own
// (parts.h), on a cluster that the program has.
//
//   int main(int argc, char** argv) {
//     // Trainers and their controller are this program again.
//     if (auto code = troupe::host_main(argc, argv, troupe::train::training_actors<MyTrainer>))
//       return *code;
//     auto cluster = troupe::Cluster::start_embedded().value();   // or connect()
//     auto result = troupe::train::train(
//         cluster,
//         {.settings = {"output_dir=out", "max_steps=400", "troupe.workers=2"},
//          .model_config = …, .parts = {.objective = {{"focal"}}, .data_source = {{"mine"}}}},
//         my_parts());
//
// The run is that of `troupe train`: strategies, kills, checkpoints, files in output_dir. It goes
// on from the newest good checkpoint there, unless the configuration says otherwise. Trainers
// compute on CPUs.

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troupe/actor.h"
#include "troupe/clock.h"
#include "troupe/cluster.h"
#include "troupe/detail/durations.h"
#include "troupe/status.h"
#include "troupe/train/parts.h"
#include "troupe/train/trainer_actor.h"

namespace troupe::train {

// What a program hosts that trains with trainers of this class, and its other actors.
template <typename... Actors>
struct TrainingActors {};
template <std::derived_from<TrainerActor> Trainer = TrainerActor, typename... Others>
inline constexpr TrainingActors<Trainer, Others...> training_actors{};

// What happens to a run, as its controller tells it.
struct TrainingEvent {
  enum class Kind {
    kStep,        // `step` is done on all ranks, with `loss`
    kEvaluation,  // after `step`, with `loss`
    kSaved,       // the checkpoint of `step` is complete
    kRankLost,    // `rank` died or hangs after `step`; `text` says of what
    kRecovered,   // the first step after a loss is done; `text` says what it cost
    kWarning,
    kOther,  // `text`
  };
  Kind kind = Kind::kOther;
  std::int64_t step = -1;  // -1: of none
  int rank = -1;           // -1: of none
  double loss = 0;
  std::string text;  // for people; of kSaved the path
};

struct TrainingJob {
  // The keys of LLaMA-Factory and those under `troupe`, as `troupe train` takes them: the path of a
  // .yaml or .json file, or its text; over it settings, "learning_rate=1e-3",
  // "troupe.strategy=zero3". Where none says otherwise finetuning_type is full, and troupe.workers,
  // the number of trainers, 1. Without data of the program's own, `dataset` says what is trained
  // on, with the model's tokenizer; names on a hub are not looked up. Variables of launchers count
  // for nothing.
  std::string config_file = {};
  std::string config = {};
  std::vector<std::string> settings = {};
  // The text of a config.json of Hugging Face's form, for a model that is trained from scratch.
  // Empty: model_name_or_path says which model is trained on.
  std::string model_config = {};
  // What is trained on, where `parts` choose no source and the configuration no data set.
  std::vector<TrainingSample> samples = {};
  // Which of the program's parts the run takes.
  PartChoices parts = {};
  // Called in wait(), on its thread; what was told while nobody waited comes then, the last 65,536
  // of it.
  std::function<void(const TrainingEvent& event)> on_event = {};
};

struct TrainingResult {
  std::int64_t steps = 0;
  std::int64_t recoveries = 0;  // generations that were lost and recovered
  std::string output_dir;       // absolute; has the model
};

// A run that goes on. Its end is that of the last reference to its cluster, whatever becomes of
// this object; but keep it until wait() has returned: while it is there a thread of its own gives
// the run's data to a controller that lost them with its machine, and the output folder is locked
// against other runs. One thread.
class Training {
 public:
  // The run's id.
  const std::string& run() const;
  // The trainer that began with `rank`, as soon as it is there. It stays the same actor, and keeps
  // its rank, when its process is killed; only with troupe.spares a rank moves.
  template <std::derived_from<TrainerActor> Trainer = TrainerActor>
  Result<ActorHandle<Trainer>> trainer(int rank, Deadline deadline) {
    return cluster().get_actor<Trainer>(trainer_name(rank), deadline.remaining());
  }
  // Saves after the step under way and ends the run: wait() says kCancelled then.
  Status save_and_stop();
  // Until the run has ended, and its controller with it. kDeadlineExceeded: it has not, and goes
  // on; whatever else failed it, with the last good checkpoint.
  Result<TrainingResult> wait(Deadline deadline);

  Training(Training&&) noexcept;
  Training& operator=(Training&&) noexcept;
  ~Training();

 private:
  struct State;
  friend Result<Training> start_training(Cluster&, TrainingJob, const TrainingParts&);
  explicit Training(std::unique_ptr<State> state);
  Cluster& cluster();
  std::string trainer_name(int rank) const;

  std::unique_ptr<State> state_;
};

// Looks for every mistake in the job that can be found here, and places the trainers: refused where
// `cluster`, which outlives the run, has no room for them. `parts`: the same that the trainers'
// class has.
Result<Training> start_training(Cluster& cluster, TrainingJob job, const TrainingParts& parts = {});

// Until its end.
Result<TrainingResult> train(Cluster& cluster, TrainingJob job, const TrainingParts& parts = {},
                             Duration timeout = std::chrono::hours(24 * 365));

namespace detail {
// TrainController, whose class is the library's.
troupe::detail::ActorClass controller_class();
}  // namespace detail

}  // namespace troupe::train

namespace troupe {

// As host_main() of actor.h, for a program that trains.
template <typename... Actors>
std::optional<int> host_main(int argc, char** argv, train::TrainingActors<Actors...>) {
  if constexpr ((detail::check_methods<Actors>() && ...)) {
    if (!detail::is_host_command(argc, argv)) return std::nullopt;
    auto classes = detail::actor_classes(actors<Actors...>);
    classes.push_back(train::detail::controller_class());
    return detail::host_main(argc, argv, std::move(classes));
  } else {
    return std::nullopt;  // (which does not compile)
  }
}

}  // namespace troupe
