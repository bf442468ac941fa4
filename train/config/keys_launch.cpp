// LLaMA-Factory's Ray keys and our own.
#include "train/config/key_builder.h"
#include "train/config/launch.h"
#include "train/config/ray_settings.h"

namespace troupe::train {

void add_launch_keys(KeyTable& t) {
  t.optional("ray_num_workers", ValueType::kInteger)
      .implemented("world size, unless troupe.workers is given",
                   TROUPE_FIELD(launch.ray_num_workers))
      .at_least(1)
      .at_most(kTrainersMax);
  t.object("ray_init_kwargs")
      .implemented(
          "settings of the cluster: variables for trainers (runtime_env.env_vars), "
          "resources of this machine",
          store_ray_settings,
          [](const TrainConfig& config) { return to_value(config.launch.ray_init_kwargs); });
  t.optional("ray_run_name", ValueType::kText)
      .inert("name of Ray's run", "run_name names the run")
      .said();
  t.text("ray_storage_path", "./saves")
      .inert("Ray's results", "output_dir receives everything")
      .said();
  t.optional("ray_storage_filesystem", ValueType::kText)
      .inert("Ray's results", "output_dir receives everything")
      .said();
  t.object("resources_per_worker")
      .implemented(
          "what a trainer takes of its node: CPU, GPU (a share of one), memory in bytes, "
          "the node's own kinds",
          TROUPE_FIELD(launch.resources_per_worker));
  t.choice("placement_strategy", "PACK", "PACK|SPREAD|STRICT_PACK|STRICT_SPREAD")
      .implemented(
          "where trainers go: on few nodes, or on many; STRICT_: on one, or each on its own",
          TROUPE_FIELD(launch.placement_strategy));
  t.optional("master_addr", ValueType::kText)
      .implemented("address of node 0, unless MASTER_ADDR is set",
                   TROUPE_FIELD(launch.master_addr));
  t.optional("master_port", ValueType::kInteger)
      .implemented("port of node 0, unless MASTER_PORT is set", TROUPE_FIELD(launch.master_port))
      .at_least(1)
      .at_most(65535);
}

void add_troupe_keys(KeyTable& t) {
  t.optional("troupe.workers", ValueType::kInteger)
      .implemented("trainers (world size)", TROUPE_FIELD(troupe.workers))
      .at_least(1)
      .at_most(kTrainersMax);
  t.optional("troupe.threads_per_worker", ValueType::kInteger)
      .implemented("threads of a trainer (default: cores / trainers on the node, at least 1)",
                   TROUPE_FIELD(troupe.threads_per_worker))
      .at_least(1)
      .at_most(kThreadsPerTrainerMax);
  t.choice("troupe.device", "auto", "auto|cpu|cuda")
      .implemented("where trainers compute; auto: on GPUs where the nodes have one for each",
                   TROUPE_FIELD(troupe.device));
  t.number("troupe.gpus_per_worker", 1)
      .implemented("share of a GPU that a trainer takes; below 1 trainers share one",
                   TROUPE_FIELD(troupe.gpus_per_worker))
      .at_least(0.01)
      .at_most(1);
  t.choice("troupe.cuda_graphs", "auto", "auto|true|false")
      .implemented(
          "layers' launches on a GPU by one call each: faster where few tokens leave it idle; "
          "auto: "
          "where the first steps show that",
          TROUPE_FIELD(troupe.cuda_graphs));
  t.optional("troupe.chaos", ValueType::kText)
      .implemented("faults to inject: kill@step=40,rank=1;…", TROUPE_FIELD(troupe.chaos));
  t.optional("troupe.max_restarts", ValueType::kInteger)
      .implemented(
          "how often the run may be restarted in all, as MAX_RESTARTS says it (default: that; "
          "without it, until 3 failures in a row brought no new step)",
          TROUPE_FIELD(troupe.max_restarts))
      .at_least(0)
      .at_most(1e6);
  t.integer("troupe.spares", 0)
      .implemented(
          "started processes per node, with GPUs per GPU that trainers use, that wait to take a "
          "dead trainer's rank",
          TROUPE_FIELD(troupe.spares))
      .at_least(0)
      .at_most(64);
  t.choice("troupe.replicas", "auto", "auto|0|1")
      .implemented(
          "whether what only one machine holds of a sharded state has a copy in another machine's "
          "memory, so that a lost machine costs no step; auto: where a run spans several and its "
          "plan has room",
          TROUPE_FIELD(troupe.replicas));
  t.text("troupe.failure_domain", "rack")
      .implemented(
          "the label of nodes that are lost together ('troupe worker --labels rack=a'): such a "
          "copy "
          "lies with another value of it, where the ranks' nodes have several and none of them has "
          "more than half of the ranks; else, and where nodes have no such label, on another node",
          TROUPE_FIELD(troupe.failure_domain));
  t.optional("troupe.hang_timeout_ms", ValueType::kInteger)
      .implemented(
          "a trainer that does not move for so long is replaced; 0: never (default: 3000, "
          "with GPUs, which are waited for, 30000)",
          TROUPE_FIELD(troupe.hang_timeout_ms))
      .at_least(0)
      .at_most(86'400'000);
  t.optional("troupe.address", ValueType::kText)
      .implemented("HOST:PORT of a running head (default: TROUPE_ADDRESS, else an own one)",
                   TROUPE_FIELD(troupe.address));
  t.optional("troupe.train_tokenizer", ValueType::kInteger)
      .implemented(
          "vocabulary size of a tokenizer trained on the data set, where the model's folder "
          "has none",
          TROUPE_FIELD(troupe.train_tokenizer))
      .at_least(257);
  t.number("troupe.held_out", 0)
      .implemented(
          "share of the documents kept out of training; bits per byte on them are reported",
          TROUPE_FIELD(troupe.held_out))
      .at_least(0)
      .at_most(0.5);
  t.optional("troupe.loss_limit", ValueType::kNumber)
      .implemented("a loss above it in several steps in a row ends the run behind the last of them",
                   TROUPE_FIELD(troupe.loss_limit))
      .above(0);
  t.integer("troupe.loss_limit_steps", 3)
      .implemented("in how many steps in a row", TROUPE_FIELD(troupe.loss_limit_steps))
      .at_least(1)
      .at_most(1e12)
      .only_where([](const TrainConfig& config) { return config.troupe.loss_limit.has_value(); },
                  "it belongs to troupe.loss_limit");
  t.optional("troupe.sample_prompt", ValueType::kText)
      .implemented("a continuation of this text is printed at the end",
                   TROUPE_FIELD(troupe.sample_prompt));
  t.boolean("troupe.precompute_ref_log_probs", false)
      .implemented(
          "dpo, kto: what the reference says of the data is worked out once, before training, and "
          "kept in output_dir; trainers hold no reference then (as TRL's key of that name)",
          TROUPE_FIELD(troupe.precompute_ref_log_probs))
      .only_where(
          [](const TrainConfig& config) {
            return config.method.has_reference() &&
                   config.method.stage != TrainingStage::kSupervised;
          },
          "it belongs to stage: kto, and to dpo but for orpo and simpo");
  t.boolean("troupe.allow_data_change", false)
      .implemented(
          "go on from a checkpoint although the data, the seed of their order or what makes "
          "samples "
          "of them has changed since",
          TROUPE_FIELD(troupe.allow_data_change));
  t.optional("troupe.accelerate_config", ValueType::kText)
      .implemented("accelerate's launch file, as for accelerate launch --config_file",
                   TROUPE_FIELD(launch.accelerate_config));
  t.boolean("troupe.operator_times", false)
      .implemented("seconds of every operator, by rank 0, in the lines of steps.jsonl",
                   TROUPE_FIELD(troupe.operator_times));
  t.integer("troupe.join_timeout_s", 300)
      .implemented(
          "how long the run waits for a machine, or for the place of a rank that was lost, and a "
          "machine for node 0, in seconds",
          TROUPE_FIELD(troupe.join_timeout_s))
      .at_least(1)
      .at_most(86400);
  t.integer("troupe.last_call_s", 30)
      .implemented(
          "how long a run with MIN_NNODES waits for more machines once so many are there, as "
          "torchrun's last_call_timeout, in seconds",
          TROUPE_FIELD(troupe.last_call_s))
      .at_least(0)
      .at_most(86400);
  t.integer("troupe.stop_timeout_s", 10)
      .implemented(
          "how long a run that is told to end (SIGTERM, troupe stop) may take until its checkpoint "
          "is begun, and then without a byte of it being written, in seconds",
          TROUPE_FIELD(troupe.stop_timeout_s))
      .at_least(2)
      .at_most(86400);
  t.integer("troupe.hold_timeout_s", 3600)
      .implemented(
          "how long a finished model that cannot be written is kept in memory and tried again, in "
          "seconds; 'troupe save RUN DIR' writes it elsewhere",
          TROUPE_FIELD(troupe.hold_timeout_s))
      .at_least(0)
      .at_most(604'800);
  t.optional("troupe.second_output_dir", ValueType::kText)
      .implemented("where the finished model goes when output_dir has no room for it",
                   TROUPE_FIELD(troupe.second_output_dir));
}

}  // namespace troupe::train
