#pragma once
// Training as a program's own: a configuration as a value, a model, data, and parts of the
// program's own (train/parts), on a cluster that the program has.
//
//   class MyTrainer : public TrainerActor { … };             // trainer_actor.h
//   int main(int argc, char** argv) {
//     // Trainers and their controller are this program again.
//     if (auto code = host_main(argc, argv, training_actors<MyTrainer>)) return *code;
//     auto cluster = Cluster::start_embedded().value();
//     TrainingJob job;
//     job.config.training.output_dir = "out";  …
//     auto training = start_training(cluster, std::move(job), my_parts()).value();
//     auto first = training.trainer<MyTrainer>(0, deadline).value();
//     … first.call<&MyTrainer::loss>() …
//     TrainingResult result = training.wait(deadline).value();
//
// The run is that of `troupe train`: strategies, kills, checkpoints, files in output_dir. It goes
// on from the newest good checkpoint there, unless TrainingSection says otherwise. Trainers compute
// on CPUs. examples/05_own_training is such a program.

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/status.h"
#include "train/config/train_config.h"
#include "train/data/token_dataset.h"
#include "train/parts/training_parts.h"
#include "train/trainer/controller.h"
#include "train/trainer/progress_lines.h"
#include "train/trainer/trainer_actor.h"
#include "troupe/cluster.h"

namespace troupe::train {

// What a program hosts that trains with trainers of this class.
template <std::derived_from<TrainerActor> Trainer = TrainerActor>
inline constexpr auto training_actors = actors<TrainController, Trainer>;

struct TrainingJob {
  // What concerns the making of a data set out of files is not asked: `dataset` and `parts` say
  // what is trained on. TroupeSection::workers is the number of trainers (1 where it says nothing).
  TrainConfig config;
  // The text of a config.json of Hugging Face's form. Empty: that of config.model's folder, whose
  // weights are trained on unless train_from_scratch says otherwise.
  std::string model_config;
  // What is trained on where parts.data_source chooses nothing.
  TokenDataset dataset{TokenDataset::Kind::kSupervised, 0};
  // Which of the program's parts the run takes.
  PartChoices parts;
};

struct TrainingResult {
  std::int64_t steps = 0;
  std::int64_t recoveries = 0;  // generations that were lost and recovered
  std::string output_dir;       // absolute; has the model
};

// A run that goes on. Its end is that of the last reference to its cluster, whatever becomes of
// this object; only the lock of its output folder goes with the object, so keep it until wait() has
// returned where another run might be told to write there. One thread.
class Training {
 public:
  // The run's id.
  const std::string& run() const;
  // The trainer that began with `rank`, as soon as it is there. It stays the same actor, and keeps
  // its rank, when its process is killed; only with spares (TroupeSection::spares) a rank moves.
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
Result<Training> start_training(Cluster& cluster, TrainingJob job, const TrainingParts& parts);

}  // namespace troupe::train
