// A training under the loss of machines: a cluster of three worker nodes, of which two train. The
// node of a rank is killed whole, with all its memory; the rank goes on on the third one, from the
// copy of its state that the other rank keeps.
//
//   09_machine_loss [STRATEGY]     zero1, zero2, zero3, ddp

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include <troupe/chaos_cluster.h>
#include <troupe/train.h>

namespace tr = troupe::train;
using namespace std::chrono_literals;
using troupe::Deadline;

// Sample n is an arithmetic sequence that follows from n.
class Sequences final : public tr::DataSource {
 public:
  std::int64_t size() const override { return 4096; }
  std::int64_t length_max() const override { return 16; }
  troupe::Result<tr::TrainingSample> sample(std::int64_t, std::int64_t number) const override {
    tr::TrainingSample sample;
    for (std::int64_t i = 0; i < length_max(); ++i)
      sample.ids.push_back(static_cast<std::int32_t>((number * 7 + i * (1 + number % 3)) % 32));
    return sample;
  }
};

tr::TrainingParts own_parts() { return tr::TrainingParts().add<Sequences>("sequences"); }

class SequenceTrainer : public tr::TrainerActor {
 public:
  SequenceTrainer(troupe::ActorContext& context, tr::TrainerSetup setup)
      : TrainerActor(context, std::move(setup), own_parts()) {}

  troupe::Result<std::int64_t> step() {
    return between_steps(
        [](const tr::TrainingView& run) -> troupe::Result<std::int64_t> { return run.step(); });
  }

  static constexpr auto methods = tr::trainer_methods<&SequenceTrainer::step>;
  static constexpr auto groups = tr::trainer_groups<&SequenceTrainer::step>;
};

namespace {

tr::TrainingJob job_of(const std::string& strategy, const std::string& output_dir) {
  // A machine for each rank, and no checkpoint to go back to.
  return {.config = R"(
            overwrite_output_dir: true
            per_device_train_batch_size: 8
            max_steps: 300
            save_strategy: "no"
            placement_strategy: STRICT_SPREAD
            troupe: {workers: 2})",
          .settings = {"output_dir=" + output_dir, "troupe.strategy=" + strategy},
          .model_config = R"({"architectures": ["LlamaForCausalLM"],
            "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32,
            "max_position_embeddings": 32})",
          .parts = {.data_source = {{"sequences"}}}};
}

std::string weights_in(const std::string& folder) {
  std::ifstream file(folder + "/model.safetensors", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Waits until the trainer has done this step, wherever its rank is: calls to it wait while it has
// no process, and those under way when its process was killed fail.
bool reaches(const troupe::ActorHandle<SequenceTrainer>& trainer, std::int64_t step) {
  const Deadline deadline = Deadline::after(30s);
  while (!deadline.passed()) {
    const auto now = trainer.call<&SequenceTrainer::step>().get(deadline.remaining());
    if (now.ok() && *now >= step) return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, tr::training_actors<SequenceTrainer>)) return *code;
  const std::string strategy = argc > 1 ? argv[1] : "zero3";
  if (argc > 2 || !std::set<std::string>{"zero1", "zero2", "zero3", "ddp"}.contains(strategy)) {
    std::fprintf(stderr, "usage: 09_machine_loss [zero1|zero2|zero3|ddp]\n");
    return 2;
  }
  auto cluster = troupe::ChaosCluster::start({.nodes = 3}, Deadline::after(30s));
  if (!cluster.ok()) {
    std::fprintf(stderr, "%s\n", cluster.status().to_string().c_str());
    return 2;
  }
  troupe::ChaosCluster& machines = **cluster;
  auto driver = machines.connect({.follow_output = false}).value();
  const auto start = [&](const std::string& name) {
    return tr::start_training(driver, job_of(strategy, machines.home() + "/" + name), own_parts());
  };
  const auto quiet = start("quiet").value().wait(Deadline::after(60s)).value();

  auto training = start("struck").value();
  auto trainer = training.trainer<SequenceTrainer>(1, Deadline::after(20s)).value();
  const bool began = reaches(trainer, 5);
  const int node = machines.node_of(driver, trainer, Deadline::after(20s)).value();
  const bool killed = began && machines.kill_node(node).ok();
  trainer = training.trainer<SequenceTrainer>(1, Deadline::after(20s)).value();
  const bool went_on = reaches(trainer, 10);
  const bool elsewhere =
      went_on && machines.node_of(driver, trainer, Deadline::after(20s)).value() != node;
  const auto struck = training.wait(Deadline::after(60s)).value();
  const bool same = !weights_in(quiet.output_dir).empty() &&
                    weights_in(quiet.output_dir) == weights_in(struck.output_dir);
  const bool joined =
      machines.join(node).ok() && machines.wait_for_node(node, Deadline::after(20s)).ok();
  const auto yes = [](bool is) { return is ? "yes" : "no"; };
  std::printf("rank 1's machine killed: %s, the rank went on on another one: %s\n", yes(killed),
              yes(elsewhere));
  std::printf("recovered without a checkpoint: %s, the same bits as undisturbed: %s\n",
              yes(struck.recoveries == 1), yes(same && struck.steps == quiet.steps));
  std::printf("another machine joined in its place: %s\n", yes(joined));
  driver.close();
  return killed && elsewhere && same && joined ? 0 : 1;
}
