#include "tools/commands/slurm.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

#include "runtime/base/json.h"
#include "runtime/base/suggest.h"
#include "runtime/process/child.h"
#include "runtime/process/output.h"
#include "tools/commands/plan.h"
#include "tools/commands/slurm_script.h"
#include "tools/commands/slurm_words.h"
#include "tools/launchers/help_text.h"
#include "tools/launchers/invocation.h"
#include "tools/launchers/launchers.h"
#include "tools/launchers/overlay_environment.h"
#include "train/config/config_format.h"
#include "train/config/ray_settings.h"

namespace troupe::tools {
namespace {

using Words = std::vector<std::string>;

constexpr Duration kSbatchTimeout = std::chrono::seconds(120);
constexpr std::size_t kAnswerBytesMax = 4096;
constexpr std::int64_t kNodesMax = 1 << 16;
constexpr std::int64_t kGpusPerNodeMax = 1 << 12;
// SLURM sends it up to a minute earlier than asked. What is left is for one step and one save.
constexpr const char* kSignal = "TERM@120";

// What a process that srun starts must not inherit from the shell that submits the job: machines
// and ranks are the job's.
const Words kMachineVariables = {
    "NNODES",          "NODE_RANK",       "MASTER_ADDR",   "MASTER_PORT",
    "RDZV_ID",         "MIN_NNODES",      "MAX_NNODES",    "RANK",
    "LOCAL_RANK",      "WORLD_SIZE",      "PET_NNODES",    "PET_NODE_RANK",
    "PET_MASTER_ADDR", "PET_MASTER_PORT", "TROUPE_ADDRESS"};

// What the job has of machines, and what a training does with them.
struct Shape {
  std::int64_t nodes = 1;
  std::int64_t gpus_per_node = 0;  // 0: not asked for here
  std::int64_t trainers = 0;       // 0: as the program's own command line says
  std::optional<std::int64_t> cpus_per_task;
};

// --- machines ------------------------------------------------------------------------------------

// "8", "a100:8".
Result<std::int64_t> gpus_in(const std::string& text) {
  return whole_number_option("gpus-per-node", text.substr(text.rfind(':') + 1), kGpusPerNodeMax);
}

Result<Shape> given_shape(const SlurmRequest& request, const Environment& environment) {
  Shape shape;
  const auto given = [&](const char* name) -> const std::string* {
    const auto found = request.given.find(name);
    return found != request.given.end() ? &found->second : nullptr;
  };
  const auto from_shell = environment.get("NNODES").value_or("");
  if (const auto* nodes = given("nodes")) {
    shape.nodes = TROUPE_TRY(whole_number_option("nodes", *nodes, kNodesMax));
  } else if (!from_shell.empty()) {
    shape.nodes = TROUPE_TRY(whole_number_option("nodes", from_shell, kNodesMax));
  }
  if (const auto* gpus = given("gpus-per-node")) shape.gpus_per_node = TROUPE_TRY(gpus_in(*gpus));
  if (const auto* cpus = given("cpus-per-task")) {
    shape.cpus_per_task = TROUPE_TRY(whole_number_option("cpus-per-task", *cpus, kNodesMax));
  }
  return shape;
}

// The environment in which a node of the job will read its configuration.
std::map<std::string, std::string> job_environment(const Environment& environment,
                                                   const Shape& shape) {
  std::map<std::string, std::string> variables;
  for (const std::string& name : kMachineVariables) variables[name] = "";
  variables["SLURM_PROCID"] = "";  // of a job that this command is part of
  if (shape.nodes > 1) {
    variables["NNODES"] = std::to_string(shape.nodes);
    variables["NODE_RANK"] = "0";
  }
  if (environment.get("NPROC_PER_NODE").value_or("").empty() && shape.gpus_per_node > 0) {
    variables["NPROC_PER_NODE"] = std::to_string(shape.gpus_per_node);
  }
  return variables;
}

// Flags of `troupe train` that mean another place for trainers, or another terminal.
Status check_train_flags(const Words& train) {
  for (const std::string& word : train) {
    const std::string key = word.substr(0, word.find('='));
    if (key == "--detach" || key == "--explain" || key == "--requeued" ||
        key.starts_with("--start-report-fd")) {
      return error(Code::kInvalidArgument, "{} has no meaning in a job script; leave it out", key);
    }
    if (key == "--address" || key == "troupe.address" || key == "--hostfile" || key == "--hosts") {
      return error(Code::kInvalidArgument,
                   "{} names machines, and the job's machines are SLURM's: leave it out, or use "
                   "'troupe train' without SLURM",
                   key);
    }
  }
  return {};
}

// `troupe train` reads what it is given, and checks it as it will be checked in the job.
Result<train::LoadedConfig> load_for_job(const Words& words, CommandContext& context,
                                         const Environment& environment) {
  CommandContext inner = with_environment(context, environment);
  // Of GPUs that a file names only the job's nodes must know, and nothing that starts here.
  const auto visible = context.environment.get("CUDA_VISIBLE_DEVICES");
  auto run = load_run(words, inner, {.begins = true});
  if (visible) {
    ::setenv("CUDA_VISIBLE_DEVICES", visible->c_str(), 1);
  } else {
    ::unsetenv("CUDA_VISIBLE_DEVICES");
  }
  if (!run.ok()) return run.status();
  return std::move(run->loaded);
}

std::int64_t divided_up(std::int64_t count, std::int64_t by) { return (count + by - 1) / by; }

// The number of trainers that the configuration itself names; nothing: it follows from the nodes.
std::optional<std::int64_t> trainers_named(const train::TrainConfig& config) {
  return config.troupe.workers ? config.troupe.workers : config.launch.ray_num_workers;
}

// What a training wants of each node, where it can be told from its configuration.
Status complete_shape(const SlurmRequest& request, const train::LoadedConfig& loaded,
                      Words& notices, Shape& shape) {
  const train::TrainConfig& config = loaded.config;
  const auto resources = TROUPE_TRY(train::worker_resources(config));
  const double share = resources.gpus.value_or(config.troupe.gpus_per_worker);
  const bool on_gpus = config.troupe.device == "cuda" ||
                       (config.troupe.device != "cpu" && resources.gpus.value_or(0) > 0);
  shape.trainers = loaded.world_size.value;
  const std::int64_t per_node = divided_up(shape.trainers, shape.nodes);
  const auto gpus = static_cast<std::int64_t>(std::ceil(static_cast<double>(per_node) * share));
  const bool asked_otherwise = std::any_of(
      request.more.begin(), request.more.end(),
      [](const SlurmDirective& at) { return at.name == "gres" || at.name.starts_with("gpus"); });
  if (shape.gpus_per_node > 0 && gpus > shape.gpus_per_node && config.troupe.device != "cpu") {
    return error(Code::kInvalidArgument,
                 "{} trainers ({}) on {} node{} need {} GPUs on each, and --gpus-per-node is {}: "
                 "ask for more nodes or GPUs, or change {}",
                 shape.trainers, loaded.world_size.from, shape.nodes, shape.nodes == 1 ? "" : "s",
                 gpus, shape.gpus_per_node, loaded.world_size.from);
  }
  if (shape.gpus_per_node > gpus && trainers_named(config)) {
    notices.push_back(fmt::format("{} of the {} GPUs of each node have no trainer: {} is {}",
                                  shape.gpus_per_node - gpus, shape.gpus_per_node,
                                  loaded.world_size.from, shape.trainers));
  }
  if (on_gpus && shape.gpus_per_node == 0 && !asked_otherwise) shape.gpus_per_node = gpus;
  if (shape.gpus_per_node == 0 && !asked_otherwise && config.troupe.device != "cpu") {
    notices.push_back(
        "no GPUs are asked for: trainers compute on CPUs; --gpus-per-node N asks for some, and "
        "troupe.device=cpu says that this is meant");
  }
  if (!shape.cpus_per_task && config.troupe.threads_per_worker) {
    shape.cpus_per_task = per_node * *config.troupe.threads_per_worker;
  }
  return {};
}

// --- the job -------------------------------------------------------------------------------------

Result<std::string> own_program() {
  std::error_code failed;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (failed) return error(Code::kInternal, "/proc/self/exe: {}", failed.message());
  return path.string();
}

Result<Shape> check_training(const SlurmRequest& request, CommandContext& context,
                             const Environment& environment, Words& notices) {
  TROUPE_RETURN_IF_ERROR(check_train_flags(request.train));
  Shape shape = TROUPE_TRY(given_shape(request, environment));
  if (!request.given.contains("nodes") && shape.gpus_per_node > 0) {
    // As many nodes as the named trainers fill. What else is wrong is told by the whole check.
    const OverlayEnvironment alone(environment, job_environment(environment, Shape{}));
    const auto first =
        train::load_train_config(request.train, alone, context.files, {.check_paths = false});
    const auto trainers = first.ok() ? trainers_named(first->config) : std::nullopt;
    if (trainers) {
      const auto per_node = static_cast<std::int64_t>(static_cast<double>(shape.gpus_per_node) /
                                                      first->config.troupe.gpus_per_worker);
      shape.nodes = divided_up(*trainers, std::max<std::int64_t>(1, per_node));
    }
  }
  const OverlayEnvironment in_job(environment, job_environment(environment, shape));
  const auto loaded = TROUPE_TRY(load_for_job(request.train, context, in_job));
  for (const std::string& warning : loaded.warnings) notices.push_back("warning: " + warning);
  for (const std::string& notice : loaded.notices) notices.push_back(notice);
  TROUPE_RETURN_IF_ERROR(complete_shape(request, loaded, notices, shape));
  return shape;
}

std::string job_name_of(const SlurmRequest& request) {
  const std::string& first = (request.train.empty() ? request.program : request.train).front();
  if (request.train.empty() && !first.starts_with('-')) {
    return std::filesystem::path(first).filename().string();
  }
  return train::is_config_file(first) ? std::filesystem::path(first).stem().string() : "troupe";
}

Result<SlurmJob> job_of(const SlurmRequest& request, const Shape& shape,
                        const std::map<std::string, std::string>& variables) {
  SlurmJob job;
  set_directive(job, "job-name", job_name_of(request));
  set_directive(job, "nodes", std::to_string(shape.nodes));
  set_directive(job, "ntasks-per-node", "1");
  if (shape.gpus_per_node > 0) {
    set_directive(job, "gpus-per-node", std::to_string(shape.gpus_per_node));
  }
  if (shape.cpus_per_task) {
    set_directive(job, "cpus-per-task", std::to_string(*shape.cpus_per_task));
  }
  for (const auto& [name, value] : request.given) set_directive(job, name, value);
  set_directive(job, "output", "slurm-%j.out");
  set_directive(job, "open-mode", "append");
  if (!request.train.empty()) set_directive(job, "requeue", "");
  set_directive(job, "signal", kSignal);
  for (const auto& [name, value] : request.more) {
    if (name == "no-requeue") {
      std::erase_if(job.directives, [](const auto& at) { return at.name == "requeue"; });
    }
    set_directive(job, name, value);
  }
  std::error_code failed;
  job.working_directory = std::filesystem::current_path(failed).string();
  if (failed) {
    return error(Code::kFailedPrecondition, "the working directory: {}", failed.message());
  }
  job.variables = variables;
  job.unset = kMachineVariables;
  job.command = {TROUPE_TRY(own_program())};
  if (request.train.empty()) {
    job.command.emplace_back("run");
    // What does not begin with a flag is another launcher's command line, or a program.
    if (!request.program.front().starts_with('-')) job.command.emplace_back("--");
    job.command.insert(job.command.end(), request.program.begin(), request.program.end());
    return job;
  }
  job.command.emplace_back("train");
  job.command.insert(job.command.end(), request.train.begin(), request.train.end());
  if (train::is_config_file(request.train.front())) {
    job.command[2] = std::filesystem::absolute(job.command[2]).lexically_normal().string();
  }
  job.requeued_argument = "--requeued";
  return job;
}

// A program's command line is read as `troupe run` will; a training that another launcher's line
// stands for becomes one of ours. Gives what that launcher would have set.
Result<std::map<std::string, std::string>> check_program(SlurmRequest& request,
                                                         CommandContext& context) {
  if (request.program.empty()) {
    return Status(Code::kInvalidArgument, "no program behind 'run'");
  }
  const OverlayEnvironment outside(context.environment,
                                   {{"SLURM_PROCID", ""}, {"SLURM_JOB_ID", ""}});
  const LauncherContext world{.environment = outside, .files = context.files};
  const bool flags = request.program.front().starts_with('-');
  const auto invocation =
      TROUPE_TRY(flags ? troupe_run(request.program, world) : interpret(request.program, world));
  if (const auto* ours = std::get_if<TroupeCommand>(&invocation.what);
      ours != nullptr && ours->words.front() == "train") {
    request.train.assign(ours->words.begin() + 1, ours->words.end());
    return ours->environment;
  }
  const auto* ranks = std::get_if<RankCommand>(&invocation.what);
  if (ranks == nullptr) {
    return error(Code::kInvalidArgument,
                 "'{}' is neither a training nor a program in ranks: run it here, without a job",
                 join_words(request.program, " "));
  }
  if (ranks->address || ranks->options.starts_hosts) {
    return Status(Code::kInvalidArgument,
                  "--address and --hostfile name machines, and the job's machines are SLURM's: "
                  "leave them out");
  }
  return std::map<std::string, std::string>();
}

// --- sbatch --------------------------------------------------------------------------------------

Result<std::string> find_sbatch(const CommandContext& context) {
  const auto path = context.environment.get("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  for (const std::string& folder : split_words(path, ':')) {
    const std::string candidate = join_path(folder, "sbatch");
    if (!folder.empty() && context.files.exists(candidate)) return candidate;
  }
  return Status(Code::kNotFound,
                "--submit: there is no sbatch in PATH, so this is no machine of a SLURM cluster "
                "that jobs are submitted on; write the script with --output job.sh, and run "
                "'sbatch job.sh' on one that is");
}

// The script on a descriptor that is read from its beginning, whatever its size.
Result<UniqueFd> as_input(const std::string& script) {
  UniqueFd file(::memfd_create("troupe-job", MFD_CLOEXEC));
  if (!file.valid()) return errno_status(errno, "make", "the job's script");
  for (std::size_t done = 0; done < script.size();) {
    const auto count = ::write(file.get(), script.data() + done, script.size() - done);
    if (count < 0) return errno_status(errno, "write", "the job's script");
    done += static_cast<std::size_t>(count);
  }
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

// The job's id. What sbatch says of a refusal goes where this command's messages go.
Result<std::string> submit_script(CommandContext& context, const std::string& script) {
  const std::string program = TROUPE_TRY(find_sbatch(context));
  const UniqueFd input = TROUPE_TRY(as_input(script));
  auto answer = TROUPE_TRY(process::make_pipe());
  process::SpawnOptions options;
  options.path = program;
  options.argv = {program, "--parsable"};
  options.descriptors = {{input.get(), STDIN_FILENO}, {answer.writer.get(), STDOUT_FILENO}};
  const auto child = TROUPE_TRY(process::spawn(options));
  answer.writer.reset();
  // The answer is smaller than what a pipe holds: it is there when the process has ended.
  const auto end = process::wait(child, Deadline::after(kSbatchTimeout));
  if (!end.ok()) {
    (void)process::kill_group(child.pid, SIGKILL);
    (void)process::wait(child, Deadline::after(kSbatchTimeout));
    return error(Code::kDeadlineExceeded,
                 "sbatch gave no answer within {} s: the cluster's controller may be away, or have "
                 "taken the job all the same (see squeue --me)",
                 std::chrono::duration_cast<std::chrono::seconds>(kSbatchTimeout).count());
  }
  std::string text(kAnswerBytesMax, '\0');
  const ssize_t count = ::read(answer.reader.get(), text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  if (end->signal != 0 || end->exit_code != 0) {
    return error(Code::kFailedPrecondition,
                 "sbatch did not take the job ({}); its message is above, and 'troupe slurm' "
                 "without --submit shows the script",
                 end->to_string());
  }
  // "JOB" or "JOB;CLUSTER"
  const std::string job = text.substr(0, text.find_first_of(";\n"));
  if (job.empty() || job.find_first_not_of("0123456789_") != std::string::npos) {
    return error(Code::kInternal, "sbatch answered '{}', and no job's number", trim(text));
  }
  return job;
}

// Where the job's output goes; empty where only SLURM knows.
std::string output_of(const SlurmJob& job, const std::string& id) {
  const SlurmDirective* const pattern = find_directive(job, "output");
  std::string path = pattern != nullptr ? pattern->value : "";
  for (std::size_t at; (at = path.find("%j")) != std::string::npos;) path.replace(at, 2, id);
  if (path.find('%') != std::string::npos) return {};
  return join_path(job.working_directory, path);
}

void show_submitted(CommandContext& context, const SlurmJob& job, const Shape& shape,
                    const std::string& id) {
  context.out << fmt::format("job {} was submitted: {} node{}", id, shape.nodes,
                             shape.nodes == 1 ? "" : "s");
  if (shape.gpus_per_node > 0)
    context.out << fmt::format(" with {} GPUs each", shape.gpus_per_node);
  if (shape.trainers > 0) context.out << fmt::format(", {} trainers", shape.trainers);
  const std::string output = output_of(job, id);
  context.out << fmt::format("\n  state:   squeue -j {}\n", id);
  if (!output.empty()) context.out << fmt::format("  follow:  tail -F {}\n", output);
  if (shape.trainers > 0) {
    context.out << fmt::format("  stop:    scancel --signal=TERM {}    (saves a checkpoint)\n", id);
  } else {
    context.out << fmt::format("  stop:    scancel {}\n", id);
  }
}

Status slurm(const Words& words, CommandContext& context) {
  SlurmRequest request = TROUPE_TRY(read_slurm_words(words));
  std::map<std::string, std::string> variables;
  if (request.train.empty()) variables = TROUPE_TRY(check_program(request, context));
  const OverlayEnvironment environment(context.environment, variables);
  // The launcher's own variables of machines are the job's to say.
  std::erase_if(variables, [](const auto& variable) {
    return std::find(kMachineVariables.begin(), kMachineVariables.end(), variable.first) !=
           kMachineVariables.end();
  });
  Words notices;
  const Shape shape = request.train.empty()
                          ? TROUPE_TRY(given_shape(request, environment))
                          : TROUPE_TRY(check_training(request, context, environment, notices));
  const SlurmJob job = TROUPE_TRY(job_of(request, shape, variables));
  if (find_directive(job, "cpus-per-task") == nullptr &&
      find_directive(job, "exclusive") == nullptr) {
    notices.push_back(
        "most clusters give a task one CPU unless --cpus-per-task N asks for more, for all of a "
        "node's trainers together");
  }
  const std::string script = TROUPE_TRY(slurm_script(job));
  for (const std::string& notice : notices) context.err << "notice: " << notice << std::endl;
  if (!request.file.empty()) {
    TROUPE_RETURN_IF_ERROR(write_file_atomically(context.files, request.file, script, 0755));
  }
  std::string id;
  if (request.submit) id = TROUPE_TRY(submit_script(context, script));
  if (request.json) {
    json::Object answer = {{"script", script},
                           {"file", request.file},
                           {"nodes", shape.nodes},
                           {"gpus_per_node", shape.gpus_per_node},
                           {"trainers", shape.trainers}};
    if (!id.empty()) {
      answer["job_id"] = id;
      answer["output"] = output_of(job, id);
    }
    context.out << json::write(answer) << "\n";
  } else if (request.submit) {
    show_submitted(context, job, shape, id);
  } else if (!request.file.empty()) {
    context.out << fmt::format("{} is written; submit it with: sbatch {}\n", request.file,
                               request.file);
  } else {
    context.out << script;
  }
  return {};
}

}  // namespace

void add_slurm_command(CLI::App& app, CommandContext& context) {
  auto words = std::make_shared<Words>();
  Command(app, context, "slurm", "Writes or submits a SLURM job that trains, or runs a program.")
      .pass_through(*words,
                    "CONFIG [KEY=VALUE]... | run PROGRAM [ARGUMENT]... | -- COMMAND [ARGUMENT]...",
                    false)
      .example("troupe slurm x.yaml --nodes 2 --gpus-per-node 8 --time 12:00:00     the script")
      .example("troupe slurm x.yaml --gpus-per-node 8 --output job.sh learning_rate=1e-4")
      .example("troupe slurm x.yaml --nodes 2 --gpus-per-node 8 --submit            to sbatch")
      .example(
          "troupe slurm x.yaml --submit --partition gpu --account lab --cpus-per-task 64 \\\n"
          "  --sbatch 'constraint=a100' --sbatch exclusive")
      .example("troupe slurm --nodes 2 --submit run --nproc-per-node 8 train.py --lr 0.1")
      .example("troupe slurm --nodes 2 --submit -- llamafactory-cli train x.yaml")
      .note(
          "--nodes (-N), --gpus-per-node, --cpus-per-task (-c), --time (-t), --partition (-p),\n"
          "--account (-A), --qos (-q), --job-name (-J) and --mem are sbatch's; --sbatch KEY=VALUE "
          "is any\nother option of it, or replaces one that the script sets by itself. --output "
          "FILE writes the\nscript there, --submit hands it to sbatch, --json says what was done. "
          "All else is what\n'troupe train' takes, and is checked as it checks it. Where the file "
          "names the number of\ntrainers, nodes and GPUs follow from it.")
      .note(
          "Two minutes before the time limit SLURM sends SIGTERM: the training saves a checkpoint "
          "and the\njob ends with code 0; the same command, submitted again, goes on from it. A "
          "job that SLURM\nqueues again, after a node failed, goes on from its newest checkpoint "
          "by itself, with\noverwrite_output_dir, too.")
      .run([words, &app, &context] {
        // What stands behind "run" or "--" is a program's, which may have help of its own.
        const auto program =
            std::find_if(words->begin(), words->end(),
                         [](const std::string& word) { return word == "run" || word == "--"; });
        if (std::any_of(words->begin(), program, asks_for_help)) {
          return print_help(app, context, "slurm");
        }
        return slurm(*words, context);
      });
}

}  // namespace troupe::tools
