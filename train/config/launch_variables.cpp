#include "train/config/launch_variables.h"

#include <algorithm>

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "train/config/fsdp.h"
#include "train/config/mesh.h"

namespace troupe::train {
namespace {

// Rows while the table is built.
class Rows {
 public:
  // The rows that follow are of this launcher.
  void of(std::string launcher, bool accelerates = false) {
    launcher_ = std::move(launcher);
    accelerates_ = accelerates;
  }
  // Each call adds a row for each of the names "A|B"; the example of each is NAME=`value`, with
  // `beside` ("C=1 D=2") where it counts only beside others.
  Rows& add(Treatment treatment, std::string_view names, std::string_view value,
            std::string_view note, std::string_view beside = {}) {
    last_ = rows_.size();
    for (const auto& name : split_words(names)) {
      auto example = fmt::format("{}={}", name, value);
      if (!beside.empty()) example += fmt::format(" {}", beside);
      rows_.push_back({.name = name,
                       .launcher = launcher_,
                       .treatment = treatment,
                       .note = std::string(note),
                       .example = std::move(example),
                       .nothing = {},
                       .needs = {},
                       .accelerates = accelerates_});
    }
    return *this;
  }
  Rows& used(std::string_view names, std::string_view value, std::string_view note,
             std::string_view beside = {}) {
    return add(Treatment::kImplemented, names, value, note, beside);
  }
  Rows& inert(std::string_view names, std::string_view value, std::string_view note) {
    return add(Treatment::kInert, names, value, note);
  }
  Rows& refused(std::string_view names, std::string_view value, std::string_view nothing,
                std::string_view note) {
    add(Treatment::kRefused, names, value, note);
    for (auto row = last_; row < rows_.size(); ++row) rows_[row].nothing = nothing;
    return *this;
  }
  // The rows added last have no effect without this switch.
  Rows& needs(std::string_view variable) {
    for (auto row = last_; row < rows_.size(); ++row) {
      rows_[row].needs = variable;
      rows_[row].example += fmt::format(" {}=1", variable);
    }
    return *this;
  }
  std::vector<LaunchVariable> take() { return std::move(rows_); }

 private:
  std::string launcher_;
  bool accelerates_ = false;
  std::size_t last_ = 0;  // the first row of the last call
  std::vector<LaunchVariable> rows_;
};

constexpr const char* kNoPyTorch = "nothing of PyTorch is used";
constexpr const char* kOneOfSeveral =
    "this process's place among those that the launcher started: one of several is a node of the "
    "run, where NNODES and NODE_RANK say the same, or it is refused";

void add_llamafactory(Rows& t) {
  t.of("LLaMA-Factory");
  t.used("USE_RAY|FORCE_TORCHRUN", "1", "several trainers, which need neither here")
      .used("NNODES", "2", "nodes of the run")
      .used("NODE_RANK", "1", "this node", "NNODES=2")
      .used("NPROC_PER_NODE", "2", "trainers of each node")
      .used("MASTER_ADDR", "10.0.0.2", "address of node 0")
      .used("MASTER_PORT", "6379", "port of node 0")
      .used("MIN_NNODES", "2",
            "nodes come and go as the run goes on: from so many to MAX_NNODES, by whose number "
            "the size of the batch is computed",
            "MAX_NNODES=2")
      .used("MAX_NNODES", "2", "see MIN_NNODES", "MIN_NNODES=2")
      .used("CUDA_VISIBLE_DEVICES", "0,1", "the GPUs of this machine that trainers may use")
      .used("MAX_RESTARTS", "3", "restart budget, unless troupe.max_restarts is given")
      .used("ALLOW_EXTRA_ARGS", "1", "unknown keys are passed over with a warning")
      .used("RDZV_ID", "job",
            "without NODE_RANK, nodes are numbered in the order in which they come, the one at "
            "MASTER_ADDR first; those beyond NNODES stand by for lost ones",
            "NNODES=2 MASTER_ADDR=10.0.0.2 MASTER_PORT=6379")
      .inert(
          "OPTIM_TORCH|PYTORCH_CUDA_ALLOC_CONF|PYTORCH_ALLOC_CONF|"
          "TORCH_NCCL_AVOID_RECORD_STREAMS",
          "1", kNoPyTorch)
      .used("USE_MODELSCOPE_HUB", "1",
            "names are those of ModelScope: its cache, and what is fetched from it")
      .used("HF_HUB_OFFLINE", "1", "names are looked up in the cache alone")
      .inert("USE_OPENMIND_HUB", "1",
             "openMind's hub is not asked: give folders, or names on Hugging Face's")
      .inert("DISABLE_VERSION_CHECK|FORCE_CHECK_IMPORTS", "1", "there are no packages to check")
      .inert(
          "LLAMAFACTORY_VERBOSITY|RECORD_VRAM|NPU_JIT_COMPILE|LLAMABOARD_ENABLED|"
          "LLAMABOARD_WORKDIR",
          "1", "it speaks to LLaMA-Factory's own program")
      .inert("WANDB_PROJECT", "x", "runs are recorded in output_dir")
      .refused("USE_MCA", "1", "", "Megatron core is another runtime; unset it")
      .refused("USE_MEGATRON_BRIDGE", "1", "", "Megatron is another runtime; unset it")
      .refused("USE_KT", "1", "", "KTransformers is another runtime; unset it")
      .refused("USE_V1", "1", "",
               "LLaMA-Factory's v1 configurations are not read; unset it, and use the stable "
               "trainer's keys");
}

void add_torchrun(Rows& t) {
  constexpr const char* kOneProcess =
      "torchrun started one process, and trainers are processes of its own";
  t.of("torchrun");
  t.used("RANK|LOCAL_RANK", "0", kOneOfSeveral)
      .used("WORLD_SIZE", "1", kOneOfSeveral)
      .inert(
          "LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_RANK|ROLE_NAME|ROLE_WORLD_SIZE|"
          "TORCHELASTIC_RUN_ID|TORCHELASTIC_RESTART_COUNT|TORCHELASTIC_MAX_RESTARTS|"
          "TORCHELASTIC_USE_AGENT_STORE|TORCHELASTIC_ERROR_FILE|TORCHELASTIC_TIMER_FILE|"
          "TORCHELASTIC_ENABLE_FILE_TIMER|TORCHELASTIC_HEALTH_CHECK_PORT|"
          "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
          "1", kOneProcess)
      .inert("TORCH_NCCL_ASYNC_ERROR_HANDLING|TORCH_DISABLE_SHARE_RDZV_TCP_STORE|PYTHON_EXEC", "1",
             kNoPyTorch)
      .inert("OMP_NUM_THREADS", "4",
             "troupe.threads_per_worker says how many threads a trainer has")
      .used("PET_NNODES", "2", "as NNODES; MIN:MAX as MIN_NNODES and MAX_NNODES")
      .used("PET_NODE_RANK", "1", "as NODE_RANK", "PET_NNODES=2")
      .used("PET_NPROC_PER_NODE", "2", "as NPROC_PER_NODE; auto and gpu: the GPUs of the machine")
      .used("PET_MASTER_ADDR", "10.0.0.2", "as MASTER_ADDR")
      .used("PET_MASTER_PORT", "6379", "as MASTER_PORT")
      .used("PET_MAX_RESTARTS", "3", "as MAX_RESTARTS")
      .used("PET_RDZV_ID", "job", "as RDZV_ID")
      .used("PET_RDZV_ENDPOINT", "10.0.0.2:29400",
            "as MASTER_ADDR and MASTER_PORT (29400 where it has none); on one node nothing")
      .inert("PET_RDZV_CONF|PET_STANDALONE|PET_LOCAL_ADDR", "1",
             "nodes meet at MASTER_ADDR and MASTER_PORT")
      .refused("PET_RDZV_BACKEND", "etcd", "static|c10d",
               "nodes meet at node 0, and no other service is asked; unset it, and give "
               "MASTER_ADDR and MASTER_PORT")
      .inert(
          "PET_MONITOR_INTERVAL|PET_START_METHOD|PET_EVENT_LOG_HANDLER|PET_LOGS_SPECS|PET_ROLE|"
          "PET_LOG_DIR|PET_REDIRECTS|PET_TEE|PET_LOCAL_RANKS_FILTER|PET_MODULE|PET_NO_PYTHON|"
          "PET_RUN_PATH|PET_DUPLICATE_STDOUT_FILTERS|PET_DUPLICATE_STDERR_FILTERS|"
          "PET_SIGNALS_TO_HANDLE|PET_VIRTUAL_LOCAL_RANK|PET_NUMA_BINDING",
          "1", "trainers are started and watched by Troupe");
}

// Values of FSDP's variables that mean something.
std::string fsdp_example(const std::string& path, const ForeignKeys::Treated& row) {
  if (path == "sharding_strategy") return "FULL_SHARD";
  if (path == "version") return "1";
  if (!row.allowed.empty()) return split_words(row.allowed).front();
  return row.type == ValueType::kNumber ? "1" : "true";
}

void add_accelerate(Rows& t) {
  const auto deepspeed = "ACCELERATE_USE_DEEPSPEED";
  t.of("accelerate", true);
  t.used("ACCELERATE_MIXED_PRECISION", "bf16", "what to compute in; fp8 is refused")
      .used("ACCELERATE_USE_CPU", "True", "trainers compute on CPUs (troupe.device=cpu)")
      .used("ACCELERATE_USE_FSDP", "true", "shard as FSDP_… say")
      .used("ACCELERATE_USE_DEEPSPEED", "true", "shard as ACCELERATE_DEEPSPEED_… say")
      .used("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4",
            "micro-batches of a step, where the training configuration does not say")
      .used("ACCELERATE_GRADIENT_CLIPPING", "0.5",
            "global norm to clip to, where max_grad_norm is not given")
      .used("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2", "what is sharded over the trainers")
      .needs(deepspeed)
      .used("ACCELERATE_DEEPSPEED_CONFIG_FILE", "ds.json", "DeepSpeed's configuration")
      .needs(deepspeed)
      .used(
          "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE|"
          "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
          "cpu", "what lies in the host's memory (troupe.offload)")
      .needs(deepspeed)
      .used("PARALLELISM_CONFIG_DP_REPLICATE_SIZE|PARALLELISM_CONFIG_DP_SHARD_SIZE", "1",
            "the mesh (troupe.mesh)");
  for (const auto* axis : {"TP", "CP", "SP", "PP", "EP"}) {
    t.refused(fmt::format("PARALLELISM_CONFIG_{}_SIZE", axis), "2", "1",
              refused_axis(lower_case(axis)).value_or(""));
  }
  t.refused("ACCELERATE_USE_MEGATRON_LM", "true", "", "Megatron is another runtime; unset it");
  // FSDP's names stand in a table of their own.
  for (const auto& path : fsdp_keys().paths()) {
    const auto name = "FSDP_" + upper_case(path);
    const auto row = fsdp_keys().treated(path);
    t.add(row.treatment, name, fsdp_example(path, row), row.note).needs("ACCELERATE_USE_FSDP");
  }
  t.of("accelerate");
  t.inert("ACCELERATE_USE_PARALLELISM_CONFIG", "true",
          "PARALLELISM_CONFIG_… count whether it is on or not")
      .refused("ACCELERATE_DOWNCAST_BF16", "true", "false|no|0",
               "parameters are rounded nowhere but where pure_bf16 says so; unset it")
      .inert(
          "ACCELERATE_DEEPSPEED_ZERO3_INIT|ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL|"
          "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH|"
          "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH|ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
          "1", "every trainer maps the files of the model, and weights are always saved whole")
      .inert(
          "ACCELERATE_DYNAMO_BACKEND|ACCELERATE_DYNAMO_MODE|ACCELERATE_DYNAMO_USE_FULLGRAPH|"
          "ACCELERATE_DYNAMO_USE_DYNAMIC|ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION",
          "NO", "the model is compiled code already")
      .inert("ACCELERATE_DEBUG_MODE", "true", "what the ranks say is always compared")
      .inert("ACCELERATE_CPU_AFFINITY|KMP_AFFINITY|KMP_BLOCKTIME|CCL_WORKER_COUNT", "1",
             "Troupe places its own threads");
}

void add_axolotl(Rows& t) {
  t.of("Axolotl");
  t.used("AXOLOTL_NCCL_TIMEOUT", "900", "seconds of one wait of ranks, unless ddp_timeout is given")
      .inert("NODE_WORLD_SIZE", "8", "GPUs are asked themselves which of them reach each other")
      .inert("AXOLOTL_DATASET_NUM_PROC|RUNPOD_CPU_COUNT|AXOLOTL_IS_PREPROCESS", "1",
             "the data set is prepared by one process, in seconds")
      .inert("AXOLOTL_TEE_STDOUT|AXOLOTL_DO_NOT_TRACK|DO_NOT_TRACK", "1",
             "nothing is tracked, and every trainer's output is in output_dir/logs");
}

void add_mpi(Rows& t) {
  t.of("MPI");
  t.used("OMPI_COMM_WORLD_RANK|PMI_RANK|MV2_COMM_WORLD_RANK", "0", kOneOfSeveral)
      .used("OMPI_COMM_WORLD_SIZE|PMI_SIZE|MV2_COMM_WORLD_SIZE", "1", kOneOfSeveral)
      .inert(
          "OMPI_COMM_WORLD_LOCAL_RANK|OMPI_COMM_WORLD_LOCAL_SIZE|MPI_LOCALRANKID|"
          "MPI_LOCALNRANKS|MV2_COMM_WORLD_LOCAL_RANK|MV2_COMM_WORLD_LOCAL_SIZE",
          "0", "mpirun started one process, and trainers are processes of its own");
  t.of("DeepSpeed");
  t.inert("LOCAL_SIZE|CROSS_RANK|CROSS_SIZE|ELASTIC_RUN_ID", "1",
          "deepspeed started one process, and trainers are processes of its own");
}

void add_slurm(Rows& t) {
  constexpr const char* kAllocation =
      "the run has this machine, or the nodes that NNODES or --address name, whatever the "
      "allocation holds";
  t.of("SLURM");
  t.used("SLURM_PROCID", "0", kOneOfSeveral)
      .used("SLURM_STEP_NUM_TASKS|SLURM_NTASKS|SLURM_NPROCS", "1", kOneOfSeveral)
      .inert(
          "SLURM_JOB_ID|SLURM_JOBID|SLURM_JOB_NAME|SLURM_JOB_NODELIST|SLURM_NODELIST|"
          "SLURM_JOB_NUM_NODES|SLURM_NNODES|SLURM_TASKS_PER_NODE|SLURM_NTASKS_PER_NODE|"
          "SLURM_CPUS_PER_TASK|SRUN_CPUS_PER_TASK|SLURM_JOB_CPUS_PER_NODE|SLURM_CPUS_ON_NODE|"
          "SLURM_GPUS_ON_NODE|SLURM_JOB_GPUS|SLURM_STEP_ID|SLURM_STEPID|SLURM_STEP_NODELIST|"
          "SLURM_STEP_NUM_NODES|SLURM_STEP_TASKS_PER_NODE|SLURM_LOCALID|SLURM_NODEID|"
          "SLURM_GTIDS|SLURMD_NODENAME|SLURM_LAUNCH_NODE_IPADDR|SLURM_SRUN_COMM_HOST|"
          "SLURM_CLUSTER_NAME|SLURM_SUBMIT_DIR|SLURM_ARRAY_TASK_ID",
          "1", kAllocation)
      .inert("SLURM_RESTART_COUNT", "1",
             "a job that is queued again goes on from the newest checkpoint of output_dir, unless "
             "overwrite_output_dir is on; troupe train --requeued, as in the scripts of troupe "
             "slurm, goes on in any case")
      .inert("SLURM_JOB_END_TIME", "1", "SIGTERM, which comes then, saves and ends the run");
}

std::vector<LaunchVariable> build_launch_table() {
  Rows rows;
  add_llamafactory(rows);
  add_torchrun(rows);
  add_accelerate(rows);
  add_axolotl(rows);
  add_mpi(rows);
  add_slurm(rows);
  return rows.take();
}

std::optional<std::string> variable_text(const Environment& environment, std::string_view name) {
  auto value = environment.get(name);
  if (!value || trim(*value).empty()) return std::nullopt;
  return std::string(trim(*value));
}

// Values that ask for nothing: those of the row, and of a switch those that do not turn it on.
bool asks_for_nothing(const LaunchVariable& row, const Environment& environment,
                      const std::string& value) {
  if (row.nothing.empty()) return row.name.starts_with("USE_") && !environment.enabled(row.name);
  const auto words = split_words(row.nothing);
  const std::string lower = lower_case(value);
  return lower == "none" || std::find(words.begin(), words.end(), lower) != words.end();
}

// How a launcher names a process's number and how many there are.
struct Numbering {
  const char* launcher;
  std::vector<const char*> rank;  // the first that is set counts
  std::vector<const char*> size;
  const char* one_per_node;  // how such processes become the nodes of one run
};

struct Number {
  std::string name;
  std::int64_t value = 0;
};

std::optional<Number> number_of(const Environment& environment,
                                const std::vector<const char*>& names, Problems& problems) {
  for (const auto* name : names) {
    const auto text = variable_text(environment, name);
    if (!text) continue;
    if (const auto value = parse_integer<std::int64_t>(*text)) return Number{name, *value};
    problems.add_named(Code::kInvalidArgument, name,
                       fmt::format("environment {}: '{}' is no whole number", name, *text));
    return std::nullopt;
  }
  return std::nullopt;
}

// In a batch script SLURM numbers the script's process 0, and SLURM_NTASKS is what srun will start;
// within a step it counts the step's own tasks.
bool is_batch_script(const Environment& environment) {
  return environment.get("ENVIRONMENT") == "BATCH" &&
         !variable_text(environment, "SLURM_STEP_ID") &&
         !variable_text(environment, "SLURM_STEPID");
}

// False where this numbering says nothing against the process.
bool check_numbering(const Numbering& numbering, const Environment& environment,
                     const LaunchEnvironment& launch, Problems& problems) {
  const auto rank = number_of(environment, numbering.rank, problems);
  const auto size = number_of(environment, numbering.size, problems);
  if (!rank || (rank->value == 0 && (!size || size->value <= 1))) return false;
  const bool several_nodes = launch.node_count() > 1;
  if (size && several_nodes && size->value == launch.node_count()) {
    if (rank->value == launch.node_rank || launch.numbered_on_arrival()) return false;
    problems.add_named(
        Code::kInvalidArgument, rank->name,
        fmt::format("environment {}={} and NODE_RANK={} disagree about which of the {} nodes this "
                    "is; give each its own, expanded there: {}",
                    rank->name, rank->value, launch.node_rank, size->value,
                    numbering.one_per_node));
    return true;
  }
  const auto count = size ? std::to_string(size->value) : std::string("several");
  problems.add_named(
      Code::kInvalidArgument, rank->name,
      fmt::format("environment {}={}{}: {} started this process as one of {}, and each would train "
                  "a run of its own; give the command once, without it, as trainers are started by "
                  "Troupe (troupe.workers={}); or once on each machine, as a node of one run: {}",
                  rank->name, rank->value,
                  size ? fmt::format(", {}={}", size->name, size->value) : "", numbering.launcher,
                  count, size ? count : "N", numbering.one_per_node));
  return true;
}

}  // namespace

const std::vector<LaunchVariable>& launch_variables() {
  static const std::vector<LaunchVariable> table = build_launch_table();
  return table;
}

LaunchVariableReport judge_launch_variables(const Environment& environment, Problems& problems) {
  LaunchVariableReport report;
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
  const auto inert = [&](const LaunchVariable& row, const std::string& value,
                         const std::string& reason) {
    report.facts.push_back({row.name, value, "environment", Treatment::kInert, reason});
    const auto found = std::find_if(reasons.begin(), reasons.end(),
                                    [&](const auto& entry) { return entry.first == reason; });
    auto& names =
        found == reasons.end() ? reasons.emplace_back(reason, std::vector<std::string>()) : *found;
    names.second.push_back(row.name);
  };
  for (const auto& row : launch_variables()) {
    const auto value = variable_text(environment, row.name);
    if (!value) continue;
    if (!row.needs.empty() && !environment.enabled(row.needs)) {
      inert(row, *value, fmt::format("{} is not on", row.needs));
    } else if (row.accelerates) {
      continue;
    } else if (row.treatment == Treatment::kInert) {
      inert(row, *value, row.note);
    } else if (row.treatment == Treatment::kImplemented) {
      report.facts.push_back({row.name, *value, "environment", row.treatment, row.note});
    } else if (asks_for_nothing(row, environment, *value)) {
      report.facts.push_back(
          {row.name, *value, "environment", Treatment::kInert, std::string(kAsksForNothing)});
    } else {
      problems.add_named(
          Code::kUnsupported, row.name,
          fmt::format("environment {}={} is not supported: {}", row.name, *value, row.note));
    }
  }
  for (const auto& [reason, names] : reasons) {
    report.notices.push_back(without_effect("the environment's ", names, reason));
  }
  return report;
}

void check_one_of_several(const Environment& environment, const LaunchEnvironment& launch,
                          Problems& problems) {
  static const char* const kByRank =
      "NNODES=$WORLD_SIZE NODE_RANK=$RANK with MASTER_ADDR and MASTER_PORT of node 0";
  static const char* const kByMpi =
      "NNODES and NODE_RANK by mpirun's numbers, with MASTER_ADDR and MASTER_PORT of node 0";
  static const char* const kBySlurm =
      "srun --ntasks-per-node=1 bash -c 'NNODES=$SLURM_NNODES NODE_RANK=$SLURM_NODEID "
      "MASTER_ADDR=… MASTER_PORT=… troupe train …'";
  // A step's own count wins over the allocation's.
  const Numbering kNumberings[] = {
      {"torchrun, or a launcher like it,", {"RANK", "LOCAL_RANK"}, {"WORLD_SIZE"}, kByRank},
      {"mpirun", {"OMPI_COMM_WORLD_RANK"}, {"OMPI_COMM_WORLD_SIZE"}, kByMpi},
      {"mpirun", {"MV2_COMM_WORLD_RANK"}, {"MV2_COMM_WORLD_SIZE"}, kByMpi},
      {"srun",
       {"SLURM_PROCID"},
       {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"},
       kBySlurm},
      {"mpirun", {"PMI_RANK"}, {"PMI_SIZE"}, kByMpi},
  };
  for (const auto& numbering : kNumberings) {
    if (numbering.rank.front() == std::string_view("SLURM_PROCID") &&
        is_batch_script(environment)) {
      continue;
    }
    if (check_numbering(numbering, environment, launch, problems)) return;
  }
}

}  // namespace troupe::train
