#include "tools/commands/plan.h"

#include <stdlib.h>

#include <algorithm>
#include <memory>

#include "runtime/base/machine.h"
#include "scheduler/node/resources_detect.h"
#include "tools/commands/hub_names.h"
#include "tools/commands/table.h"
#include "tools/commands/train_cluster.h"
#include "tools/commands/train_flags.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/cuda/device/device.h"
#include "train/report/format.h"
#include "train/trainer/device_choice.h"
#include "train/trainer/disk_plan.h"
#include "train/trainer/run_plan.h"

namespace troupe::tools {
namespace {

using train::MemoryPlan;
using train::PlanRequest;

// Everything the command knows before it calculates.
struct Question {
  train::LoadedConfig loaded;
  train::ModelConfig model;
  train::PlanFacts facts;
  train::NodeMemory memory;
  // Trainers run on this machine: its memory decides.
  bool here = true;
  PlanRequest configured;
  std::string notice;  // why it is planned for CPUs
  train::DiskPlan disk;
  std::int64_t disk_room = 0;
};

const std::string& output_dir_of(const Question& question) {
  return question.loaded.config.training.output_dir;
}

// One line of the table.
struct Row {
  PlanRequest request;
  MemoryPlan plan;
  train::DevicePlan device;  // of a request that is on_gpu
  std::int64_t machine_bytes = 0;
  bool configured = false;
  bool fits = true;
};

// As the run would decide, where its nodes are like this machine.
Result<bool> plans_on_gpus(Question& question, CommandContext& context) {
  const train::TrainConfig& config = question.loaded.config;
  if (config.troupe.device == "cpu") return false;
  const auto here = gpus_here(context.environment);
  if (here.ok()) question.memory.device_bytes = here->memory_bytes;
  // What is asked for is planned, wherever it will run.
  if (config.troupe.device == "cuda") return true;
  const auto machines = static_cast<std::int64_t>(question.facts.machines);
  const train::DeviceOffer offer{
      .nodes = machines, .gpus = here.ok() ? machines * here->count : 0, .usable = here.status()};
  auto decision =
      TROUPE_TRY(train::decide_device(config, static_cast<int>(question.facts.world_size), offer));
  if (!decision.notice.empty()) question.notice = std::move(decision.notice);
  return decision.on_gpus;
}

Result<Question> ask(const std::vector<std::string>& arguments, CommandContext& context) {
  Question question;
  auto run = TROUPE_TRY(load_run(arguments, context, {.begins = true}));
  question.loaded = std::move(run.loaded);
  if (!run.contents.model)
    return error(Code::kInvalidArgument,
                 "this machine joins the run of MASTER_ADDR={} (NODE_RANK, RDZV_ID): a run is "
                 "planned there, or without these variables",
                 question.loaded.launch.master_addr.value_or(""));
  if (!question.loaded.config.trains())
    return error(Code::kInvalidArgument,
                 "do_predict alone trains nothing: each process that predicts holds the model in "
                 "fp32, and there is no more to plan");
  question.model = std::move(*run.contents.model);
  const int cores = cores_here(context.files);
  question.facts = TROUPE_TRY(train::facts_of(context.files, question.loaded, cores));
  question.memory = TROUPE_TRY(memory_here(context.files));
  question.facts.trainables = run.contents.trained.trainables;
  question.facts.on_gpus = TROUPE_TRY(plans_on_gpus(question, context));
  question.here = !train::resolve_address(question.loaded.config, question.loaded.launch);
  const train::TrainConfig& config = question.loaded.config;
  question.disk = train::plan_disk(config, question.model, question.facts.trainables);
  question.disk_room = TROUPE_TRY(train::room_in(config.training.output_dir));
  question.configured =
      TROUPE_TRY(train::plan_request(question.loaded.config, question.model, question.facts));
  if (question.loaded.launch.elastic())
    TROUPE_RETURN_IF_ERROR(train::check_world(question.loaded, question.facts.on_gpus));
  return question;
}

// The same where the world may change and has shrunk as far as it may.
Result<Question> with_fewest_machines(Question question) {
  const auto machines = static_cast<int>(*question.loaded.launch.nodes_min);
  question.facts.world_size = question.facts.ranks_on_machine() * machines;
  question.facts.machines = machines;
  question.configured =
      TROUPE_TRY(train::plan_request(question.loaded.config, question.model, question.facts));
  return question;
}

Row row_of(const Question& question, PlanRequest request, bool configured) {
  Row row{.request = std::move(request), .configured = configured};
  row.plan = train::plan_memory(row.request);
  row.machine_bytes = train::node_bytes(row.request);
  row.fits = row.machine_bytes <= question.memory.available_bytes;
  if (row.request.on_gpu) {
    row.device = train::plan_device_memory(row.request);
    row.fits = row.fits && (question.memory.device_bytes == 0 ||
                            train::gpu_bytes(row.request) <= question.memory.device_bytes);
  }
  return row;
}

// Shard groups that one machine holds all of are as good as no groups: two of them show what a
// hybrid strategy costs.
Result<PlanRequest> request_of(const Question& question, const train::StrategyRow& strategy,
                               int world) {
  PlanRequest request = TROUPE_TRY(train::plan_request(question.loaded.config, question.model,
                                                       question.facts, strategy.strategy, world));
  if (strategy.hybrid && request.mesh.dp_replicate == 1 && world >= 4 && world % 2 == 0) {
    request.mesh =
        TROUPE_TRY(train::make_mesh(strategy.strategy, world, request.ranks_on_node, 2, world / 2));
  }
  return request;
}

Result<std::vector<Row>> rows_of(const Question& question, int world) {
  std::vector<Row> rows;
  for (const train::StrategyRow& strategy : train::strategy_table()) {
    const bool configured =
        world == question.facts.world_size && strategy.strategy == question.configured.strategy;
    PlanRequest request =
        configured ? question.configured : TROUPE_TRY(request_of(question, strategy, world));
    rows.push_back(row_of(question, std::move(request), configured));
  }
  return rows;
}

std::string bytes(double count) { return train::format_bytes(static_cast<std::uint64_t>(count)); }
std::string bytes(std::int64_t count) { return bytes(static_cast<double>(count)); }

// Of a trainer with a GPU: its memory, and what it takes of the host's in all.
std::vector<std::string> device_cells_of(const Row& row) {
  const train::DevicePlan& plan = row.device;
  return {(row.configured ? "* " : "  ") + describe(row.request.strategy, row.request.mesh),
          bytes(plan.parameters),
          bytes(plan.gradients),
          bytes(plan.optimizer),
          bytes(plan.gathered),
          bytes(plan.activations),
          bytes(plan.reduction + plan.workspaces + plan.communication),
          bytes(plan.total()),
          bytes(row.plan.total()),
          bytes(row.machine_bytes),
          bytes(train::plan_traffic(row.request).total()),
          row.fits ? "" : "too large"};
}

std::vector<std::string> cells_of(const Row& row) {
  const MemoryPlan& plan = row.plan;
  return {(row.configured ? "* " : "  ") + describe(row.request.strategy, row.request.mesh),
          bytes(plan.parameters),
          bytes(plan.gradients),
          bytes(plan.optimizer),
          bytes(plan.gathered),
          bytes(plan.activations),
          bytes(plan.rest()),
          bytes(plan.total()),
          bytes(row.machine_bytes),
          bytes(train::plan_traffic(row.request).total()),
          row.fits ? "" : "too large"};
}

// Numbers stand under each other by their last digit.
void print_table(const std::vector<Row>& rows, std::ostream& out) {
  std::vector<std::vector<std::string>> lines = {{"  strategy", "parameters", "gradients",
                                                  "optimizer", "gathered", "activations", "rest",
                                                  "per trainer", "machine", "sent a step", ""}};
  const bool on_gpu = rows.front().request.on_gpu;
  if (on_gpu) {
    lines = {{"  strategy", "parameters", "gradients", "optimizer", "gathered", "activations",
              "rest", "per GPU", "host, a trainer", "machine", "sent a step", ""}};
  }
  for (const Row& row : rows) lines.push_back(on_gpu ? device_cells_of(row) : cells_of(row));
  for (std::size_t column = 1; column + 1 < lines[0].size(); ++column) {
    std::size_t width = 0;
    for (const auto& line : lines) width = std::max(width, line[column].size());
    for (auto& line : lines) line[column].insert(0, width - line[column].size(), ' ');
  }
  Table table(lines[0]);
  for (std::size_t i = 1; i < lines.size(); ++i) table.add(lines[i]);
  table.print(out);
}

std::string precision_of(const train::PlanRequest& request) {
  const train::ComputeOptions& compute = request.compute;
  const char* products = request.on_gpu && request.fp8 ? ", products in fp8" : "";
  if (compute.state == train::DType::kBF16) return fmt::format("pure bf16{}", products);
  if (compute.compute == train::DType::kBF16)
    return fmt::format("bf16 with fp32 parameters{}", products);
  return "fp32";
}

std::string_view recompute_name(train::Recompute recompute) {
  switch (recompute) {
    case train::Recompute::kNothing:
      return "everything is kept for the backward pass";
    case train::Recompute::kCheapOperators:
      return "cheap operators are done again";
    case train::Recompute::kLayers:
      return "blocks are done again in the backward pass";
  }
  return "";
}

std::string trainers_text(const PlanRequest& request) {
  return fmt::format("{} trainer{}", request.ranks_on_node, request.ranks_on_node == 1 ? "" : "s");
}

void print_facts(const Question& question, std::ostream& out) {
  const PlanRequest& request = question.configured;
  const train::ModelConfig& model = question.model;
  const train::ModelLayout layout(model, question.facts.trainables);
  const auto count = [](std::int64_t elements) {
    return train::format_count(static_cast<double>(elements));
  };
  const bool has_reference = layout.reference_elements() > 0;
  out << fmt::format(
      "{}: {} parameters{}{} ({} layers, hidden size {}, vocabulary {}), {}\n", model.model_type,
      count(layout.parameter_elements()),
      layout.has_frozen()
          ? fmt::format(", {} of them trained", count(layout.trained().parameter_elements()))
          : "",
      has_reference ? fmt::format(", and {} of a reference", count(layout.reference_elements()))
                    : "",
      model.num_hidden_layers, model.hidden_size, model.vocab_size, precision_of(request));
  out << fmt::format("micro-batches of {} rows of {} tokens ({}), {} a step; {}\n",
                     request.activations.rows_max, request.activations.length_max,
                     question.facts.length_from, request.reduction.micro_batches,
                     recompute_name(request.activations.recompute));
  out << fmt::format("{} of {} available here{}; {} on a machine, threads each: {}\n",
                     bytes(question.memory.available_bytes), bytes(question.memory.total_bytes),
                     question.memory.limit.empty() ? "" : " (" + question.memory.limit + ")",
                     trainers_text(request), request.threads);
}

// What stands by beside trainers.
std::string spares_text(const PlanRequest& request) {
  if (request.spares_on_gpu == 0) return {};
  return fmt::format(
      ", but for spares, which hold a context and no memory of a training: {} on each GPU, {} each",
      request.spares_on_gpu, bytes(train::kSpareDeviceBytes));
}

// What a trainer on a GPU keeps of its state in the host's memory.
std::string offloaded_text(const MemoryPlan& host) {
  if (host.state() == 0) return {};
  return fmt::format("{} offloaded parameters, {} optimizer state, ",
                     bytes(host.parameters + host.gathered), bytes(host.optimizer));
}

void print_device_rest(const Question& question, const Row& row, std::ostream& out) {
  const train::DevicePlan& plan = row.device;
  const MemoryPlan& host = row.plan;
  const std::string room = question.memory.device_bytes > 0
                               ? bytes(question.memory.device_bytes)
                               : std::string("not known: there is none here");
  const std::string beside = spares_text(row.request);
  out << fmt::format(
      "\n* as configured; the rest of a GPU's memory: {} gradients on their way, {} workspaces, {} "
      "communication; what the driver, the context, graphs of launches and NCCL take for "
      "themselves is not counted{}. "
      "A GPU's memory here: {}\nhost, a trainer: {}{} {}pinned memory, {} rings between trainers, "
      "{} "
      "data set, {} program\nmachine: {} and {} beside them\n",
      bytes(plan.reduction), bytes(plan.workspaces), bytes(plan.communication), beside, room,
      offloaded_text(host), bytes(host.workspaces),
      row.request.offload == train::Offload::kNothing ? "copies of what is saved and " : "",
      bytes(host.rings), bytes(host.dataset), bytes(host.runtime), trainers_text(row.request),
      bytes(row.machine_bytes - row.request.ranks_on_node * host.total()));
}

void print_rest(const Row& row, std::ostream& out) {
  const MemoryPlan& plan = row.plan;
  out << fmt::format(
      "\n* as configured; its rest: {} gradients on their way, {} workspaces, {} rings between "
      "trainers, {}{} data set, {} program\nmachine: {} and {} beside them\n",
      bytes(plan.reduction), bytes(plan.workspaces), bytes(plan.rings),
      (plan.kept > 0 ? bytes(plan.kept) + " copy of another machine's rank (troupe.replicas), "
                     : "") +
          (plan.former > 0
               ? bytes(plan.former) + " of the world before, until a step of the next one stands, "
               : ""),
      bytes(plan.dataset), bytes(plan.runtime), trainers_text(row.request),
      bytes(row.machine_bytes - row.request.ranks_on_node * plan.total()));
}

json::Object json_of(const Row& row) {
  const MemoryPlan& plan = row.plan;
  const train::TrafficPlan traffic = train::plan_traffic(row.request);
  const train::Formula state = train::state_formula(row.request);
  const train::Formula formula = train::traffic_formula(row.request);
  json::Object object = {
      {"strategy", std::string(train::row_of(row.request.strategy).name)},
      {"world_size", row.request.mesh.size()},
      {"mesh", json::Array{row.request.mesh.dp_replicate, row.request.mesh.dp_shard}},
      {"configured", row.configured},
      {"fits", row.fits},
      {"per_rank_bytes", json::Object{{"parameters", plan.parameters},
                                      {"gradients", plan.gradients},
                                      {"optimizer", plan.optimizer},
                                      {"gathered", plan.gathered},
                                      {"activations", plan.activations},
                                      {"reduction", plan.reduction},
                                      {"workspaces", plan.workspaces},
                                      {"rings", plan.rings},
                                      {"kept", plan.kept},
                                      {"former", plan.former},
                                      {"dataset", plan.dataset},
                                      {"runtime", plan.runtime},
                                      {"total", plan.total()}}},
      {"state_bytes", plan.state()},
      {"state_formula", state.text},
      {"state_formula_bytes", state.bytes},
      {"ranks_on_machine", row.request.ranks_on_node},
      {"machine_bytes", row.machine_bytes},
      {"sent_bytes_per_step", traffic.total()},
      {"sent_formula", formula.text},
      {"sent_formula_bytes", formula.bytes}};
  if (row.request.on_gpu) {
    const train::DevicePlan& device = row.device;
    object["per_gpu_bytes"] = json::Object{{"parameters", device.parameters},
                                           {"gradients", device.gradients},
                                           {"optimizer", device.optimizer},
                                           {"gathered", device.gathered},
                                           {"activations", device.activations},
                                           {"reduction", device.reduction},
                                           {"workspaces", device.workspaces},
                                           {"communication", device.communication},
                                           {"total", device.total()}};
    object["spares_per_gpu"] = row.request.spares_on_gpu;
    object["spare_gpu_bytes"] = train::kSpareDeviceBytes;
    object["gpu_bytes"] = train::gpu_bytes(row.request);
  }
  return object;
}

json::Object json_of(const Question& question, const std::vector<Row>& rows) {
  const PlanRequest& request = question.configured;
  const train::ModelLayout layout(question.model, question.facts.trainables);
  json::Array plans;
  for (const Row& row : rows) plans.push_back(json_of(row));
  return {{"parameters", layout.parameter_elements()},
          {"trained_parameters", layout.trained().parameter_elements()},
          {"elements", layout.trained().total_elements() + layout.frozen().total_elements()},
          {"micro_batch", json::Object{{"rows", request.activations.rows_max},
                                       {"length", request.activations.length_max},
                                       {"length_from", question.facts.length_from},
                                       {"per_step", request.reduction.micro_batches}}},
          {"threads", request.threads},
          {"memory", json::Object{{"available_bytes", question.memory.available_bytes},
                                  {"total_bytes", question.memory.total_bytes},
                                  {"limit", question.memory.limit}}},
          {"disk", json::Object{{"model_bytes", question.disk.model_bytes},
                                {"checkpoint_bytes", question.disk.checkpoint_bytes},
                                {"least_bytes", question.disk.least_bytes()},
                                {"room_bytes", question.disk_room}}},
          {"plans", std::move(plans)}};
}

Status plan(std::vector<std::string> arguments, CommandContext& context) {
  TROUPE_RETURN_IF_ERROR(check_flags(arguments, "plan", train_flags::kReading));
  const bool json_wanted = take(arguments, train_flags::kJson);
  const Question question = TROUPE_TRY(ask(arguments, context));
  const int world = question.facts.world_size;
  auto rows = TROUPE_TRY(rows_of(question, world));
  const bool elastic = question.loaded.launch.elastic();
  const Question other = elastic ? TROUPE_TRY(with_fewest_machines(question)) : question;
  const int other_world = elastic ? other.facts.world_size : 2 * world;
  const auto other_rows = TROUPE_TRY(rows_of(other, other_world));
  if (json_wanted) {
    rows.insert(rows.end(), other_rows.begin(), other_rows.end());
    context.out << json::write(json_of(question, rows)) << "\n";
  } else {
    for (const std::string& warning : question.loaded.warnings)
      context.err << "warning: " << warning << "\n";
    for (const std::string& notice : question.loaded.notices)
      context.err << "notice: " << notice << "\n";
    if (!question.notice.empty()) context.err << question.notice << "\n";
    print_facts(question, context.out);
    context.out << fmt::format("\nworld size {}, as configured\n", world);
    print_table(rows, context.out);
    context.out << fmt::format("\nworld size {}{}\n", other_world,
                               elastic ? ", of MIN_NNODES machines" : "");
    print_table(other_rows, context.out);
    for (const Row& row : rows)
      if (row.configured && row.request.on_gpu)
        print_device_rest(question, row, context.out);
      else if (row.configured)
        print_rest(row, context.out);
    context.out << fmt::format("disk: {}; {} has room for {}\n", train::describe(question.disk),
                               output_dir_of(question), bytes(question.disk_room));
  }
  context.out << std::flush;
  if (!question.here) return {};
  const Status fits = check_fits(other.configured, question.memory);
  if (!fits.ok() && elastic)
    return fits.prefixed(fmt::format("with MIN_NNODES={} machines", other.facts.machines));
  TROUPE_RETURN_IF_ERROR(fits);
  return train::check_disk(question.disk, question.disk_room, output_dir_of(question));
}

// Without a checkpoint, what lies in output_dir is what the first start had written before one, or
// what it had found good: it begins anew.
void go_on_from_first_start(FileSystem& files, train::TrainConfig& config) {
  auto& training = config.training;
  const auto checkpoints = train::find_checkpoints(files, training.output_dir);
  if (checkpoints.ok() && !checkpoints->empty()) {
    training.resume_from_checkpoint = {.mode = train::ResumeFrom::Mode::kLatest, .path = {}};
    training.overwrite_output_dir = false;
  } else if (training.resume_from_checkpoint.mode == train::ResumeFrom::Mode::kAuto) {
    training.overwrite_output_dir = true;
  }
}

}  // namespace

int cores_here(FileSystem& files) {
  return scheduler::detect_cpu_count(files, scheduler::SystemMachine());
}

Result<train::NodeMemory> memory_here(FileSystem& files) {
  const auto found = TROUPE_TRY(detect_available_memory(files));
  return train::NodeMemory{
      .available_bytes = found.available_bytes,
      .total_bytes = found.total_bytes,
      .limit = found.group_limited ? "what the memory limit of its control group leaves" : ""};
}

Result<train::GpusHere> gpus_here(const Environment& environment) {
  const auto library = TROUPE_TRY(train::CudaLibrary::load(environment));
  const auto devices = TROUPE_TRY(train::list_devices(*library, environment));
  train::GpusHere here{.count = static_cast<std::int64_t>(devices.size())};
  for (const auto& device : devices) {
    if (here.memory_bytes == 0 || device.memory_bytes < here.memory_bytes)
      here.memory_bytes = device.memory_bytes;
  }
  return here;
}

Result<CheckedRun> load_run(const std::vector<std::string>& arguments, CommandContext& context,
                            const LoadRunOptions& how) {
  CheckedRun run;
  auto names = hub_names(context, how.fetches);
  train::LoadOptions options;
  options.locate = locating(names);
  options.on_problems = how.on_problems;
  options.check_contents = [&](const train::LoadedConfig& loaded, train::Problems& problems) {
    // The other nodes wait for what the first one makes of them. One whose address cannot be told
    // from theirs is refused for that later.
    if (joins_another(context, loaded).value_or(false)) return;
    std::vector<train::ContentProblem> found;
    train::TrainConfig config = loaded.config;
    if (how.requeued) go_on_from_first_start(context.files, config);
    run.contents = train::read_contents(context.files, config, found);
    for (const auto& problem : found) {
      const bool of_output = problem.key == "output_dir" || problem.key == "resume_from_checkpoint";
      if (!how.begins && of_output && !problem.of_settings) continue;
      // Told already: by the same key, by the folder's, or by the rules of the settings.
      const bool of_data = problem.key == "dataset" || problem.key == "eval_dataset";
      if (problems.has(problem.key) || (of_data && problems.has("dataset_dir")) ||
          (problem.of_settings && !problems.empty()))
        continue;
      problems.add(problem.key, problem.status);
    }
  };
  run.loaded =
      TROUPE_TRY(train::load_train_config(arguments, context.environment, context.files, options));
  const train::LoadedConfig& loaded = run.loaded;
  // As accelerate's launcher does; before there are threads, and before anybody looks at the GPUs.
  if (!loaded.launch.gpu_ids_key.empty())
    ::setenv("CUDA_VISIBLE_DEVICES", loaded.launch.visible_gpus->c_str(), 1);
  const bool open = loaded.world_size.from == "default" && loaded.config.troupe.device != "cpu" &&
                    !train::resolve_address(loaded.config, loaded.launch);
  if (open) {
    const auto here = gpus_here(context.environment);
    if (here.ok() && here->count > 0)
      run.loaded = TROUPE_TRY(
          train::load_train_config(arguments, context.environment, context.files,
                                   {.gpu_count = here->count, .locate = locating(names)}));
  }
  if (how.requeued) go_on_from_first_start(context.files, run.loaded.config);
  TROUPE_RETURN_IF_ERROR(train::check_world(run.loaded));
  return run;
}

void add_plan_command(CLI::App& app, CommandContext& context) {
  auto arguments = std::make_shared<std::vector<std::string>>();
  Command(app, context, "plan",
          "Says how much memory and network traffic a training run will need.")
      .pass_through(*arguments, "[CONFIG] [KEY=VALUE]...")
      .example("troupe plan examples/train/pretrain_tiny.yaml")
      .example("troupe plan x.yaml troupe.strategy=zero3 troupe.workers=4")
      .example("troupe plan x.yaml --json")
      .flags_help(train_flags_help(train_flags::kReading))
      .note("Files, key=value and --key value are those of 'troupe train'.")
      .run([arguments, &context] { return plan(*arguments, context); });
}

}  // namespace troupe::tools
