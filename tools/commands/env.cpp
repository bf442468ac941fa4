#include "tools/commands/env.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/base/machine.h"
#include "runtime/base/suggest.h"
#include "runtime/process/child.h"
#include "runtime/process/output.h"
#include "runtime/process/spawn.h"
#include "runtime/wire/types.h"
#include "scheduler/node/resources_detect.h"
#include "tools/commands/plan.h"
#include "tools/commands/version.h"
#include "tools/launchers/accelerate_settings.h"
#include "train/config/keys.h"
#include "train/report/format.h"

extern char** environ;

namespace troupe::tools {
namespace {

constexpr Duration kPythonTime = std::chrono::seconds(5);
constexpr std::size_t kPythonAnswerBytesMax = 16u << 10;
constexpr std::size_t kProcFileBytesMax = 16u << 20;

// Nothing is imported: that would take seconds.
constexpr const char* kPythonQuestion = R"(
import json, platform, sys
from importlib import metadata
found = {"python": platform.python_version(), "executable": sys.executable}
for name in ("torch", "numpy", "transformers", "accelerate", "deepspeed", "peft", "trl", "llamafactory", "axolotl"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
)";

// The value behind the first "name : value" line that begins so.
std::string field_of(FileSystem& files, const std::string& path, std::string_view name) {
  const auto text = files.read(path, kProcFileBytesMax);
  if (!text.ok()) return {};
  for (const std::string& line : split_words(*text, '\n')) {
    const std::size_t split = line.find_first_of(":=");
    if (split == std::string::npos || trim(line.substr(0, split)) != name) continue;
    std::string value(trim(line.substr(split + 1)));
    std::erase(value, '"');
    return value;
  }
  return {};
}

std::string python_of(const CommandContext& context) {
  if (const auto given = context.environment.get("PYTHON_EXEC")) return *given;
  if (const auto folder = context.environment.get("VIRTUAL_ENV")) {
    return join_path(*folder, "bin/python");
  }
  const auto path = context.environment.get("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  for (const std::string& folder : split_words(path, ':')) {
    const std::string candidate = join_path(folder, "python3");
    if (!folder.empty() && context.files.exists(candidate)) return candidate;
  }
  return {};
}

// What Python and its packages are. The message says why that is not known.
Result<json::Value> ask_python(const std::string& interpreter) {
  if (interpreter.empty()) return Status(Code::kNotFound, "no python3 in PATH");
  auto pipe = TROUPE_TRY(process::make_pipe());
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  process::SpawnOptions options;
  options.path = interpreter;
  options.argv = {interpreter, "-c", kPythonQuestion};
  options.descriptors = {{nothing.get(), STDIN_FILENO},
                         {pipe.writer.get(), STDOUT_FILENO},
                         {nothing.get(), STDERR_FILENO}};
  const auto child = TROUPE_TRY(process::spawn(options));
  pipe.writer.reset();
  // The answer is smaller than what a pipe holds: it is there when the process has ended.
  const auto end = process::wait(child, Deadline::after(kPythonTime));
  if (!end.ok()) {
    (void)process::kill_group(child.pid, SIGKILL);
    (void)process::wait(child, Deadline::after(kPythonTime));
    return Status(Code::kDeadlineExceeded, "it gave no answer within 5 s");
  }
  if (end->signal != 0 || end->exit_code != 0) {
    return error(Code::kUnavailable, "{}", end->to_string());
  }
  std::string answer(kPythonAnswerBytesMax, '\0');
  const ssize_t count = ::read(pipe.reader.get(), answer.data(), answer.size());
  answer.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  return json::parse(answer, interpreter);
}

std::string nccl_version() {
  void* library = ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return "not found (libnccl.so.2)";
  const auto get_version = reinterpret_cast<int (*)(int*)>(::dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) return "unknown";
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

struct Report {
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<std::string> gpus;
  std::map<std::string, std::string> packages;
  std::string accelerate_file;  // empty: there is none
  std::vector<std::pair<std::string, std::string>> accelerate;
  std::map<std::string, std::string> variables;
};

void add_machine(CommandContext& context, Report& report) {
  const auto fact = [&](const char* name, std::string value) {
    report.facts.emplace_back(name, value.empty() ? "unknown" : std::move(value));
  };
  utsname system{};
  if (::uname(&system) == 0) {
    fact("Kernel", fmt::format("{} {} {}", system.sysname, system.release, system.machine));
  }
  fact("System", field_of(context.files, "/etc/os-release", "PRETTY_NAME"));
  const scheduler::SystemMachine machine;
  fact("CPU", field_of(context.files, "/proc/cpuinfo", "model name"));
  fact("CPUs", fmt::format("{} usable of {}", scheduler::detect_cpu_count(context.files, machine),
                           std::max(1u, std::thread::hardware_concurrency())));
  const auto memory = detect_available_memory(context.files);
  fact("Memory",
       !memory.ok()
           ? memory.status().message()
           : fmt::format("{} free of {}{}",
                         train::format_bytes(static_cast<std::uint64_t>(memory->available_bytes)),
                         train::format_bytes(static_cast<std::uint64_t>(memory->total_bytes)),
                         memory->group_limited ? " (the limit of a control group)" : ""));
  const auto gpus = scheduler::detect_gpus(context.files, context.environment, machine);
  for (const auto& gpu : gpus.gpus.devices) {
    report.gpus.push_back(fmt::format(
        "{}: {}, {}, compute capability {}.{}", gpu.index, gpu.name.empty() ? "unknown" : gpu.name,
        train::format_bytes(gpu.memory_total_bytes), gpu.compute_major, gpu.compute_minor));
  }
  fact("GPUs", report.gpus.empty() ? "none" : std::to_string(report.gpus.size()));
  for (const std::string& problem : gpus.problems) fact("GPU problem", problem);
  const auto driver = context.files.read("/proc/driver/nvidia/version", kProcFileBytesMax);
  fact("NVIDIA driver",
       driver.ok() ? std::string(trim(driver->substr(0, driver->find('\n')))) : "none");
  const auto ours = gpus_here(context.environment);
  fact("GPU training",
       ours.ok() ? fmt::format("on {} GPUs", ours->count) : "none: " + ours.status().message());
  fact("NCCL", nccl_version());
}

void add_python(CommandContext& context, Report& report) {
  const std::string interpreter = python_of(context);
  const auto answer = ask_python(interpreter);
  const auto* found = answer.ok() ? answer->if_object() : nullptr;
  if (!found) {
    report.facts.emplace_back(
        "Python",
        fmt::format("none{}: {}", interpreter.empty() ? "" : " (" + interpreter + ")",
                    answer.ok() ? "its answer is no JSON object" : answer.status().message()));
    return;
  }
  report.facts.emplace_back(
      "Python", fmt::format("{} ({})", json::find_string(*answer, "python").value_or(""),
                            json::find_string(*answer, "executable").value_or("")));
  for (const auto& member : *found) {
    const std::string name(member.key());
    if (name != "python" && name != "executable") {
      report.packages[name] = train::value_text(member.value());
    }
  }
}

Status add_accelerate(CommandContext& context, const std::string& given, Report& report) {
  const std::string path = given.empty() ? accelerate_default_file(context.environment) : given;
  if (given.empty() && !context.files.exists(path)) return {};
  const auto values = read_accelerate_values(path, context.files);
  // A default file that cannot be read is part of the report.
  if (!values.ok() && !given.empty()) return values.status();
  report.accelerate_file = path;
  if (!values.ok()) {
    report.accelerate.emplace_back("not readable", values.status().message());
    return {};
  }
  for (const auto& member : *values) {
    report.accelerate.emplace_back(std::string(member.key()), train::value_text(member.value()));
  }
  return {};
}

void add_variables(Report& report) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string name(text.substr(0, equals));
    if (!tells_of_training(name)) continue;
    report.variables[name] = shown_variable(name, std::string(text.substr(equals + 1)));
  }
}

json::Object report_json(const Report& report) {
  json::Object out;
  const auto object = [](const auto& pairs) {
    json::Object values;
    for (const auto& [name, value] : pairs) values[name] = value;
    return values;
  };
  out["facts"] = object(report.facts);
  json::Array gpus;
  for (const std::string& gpu : report.gpus) gpus.emplace_back(gpu);
  out["gpus"] = std::move(gpus);
  out["packages"] = object(report.packages);
  out["accelerate_file"] = report.accelerate_file;
  out["accelerate"] = object(report.accelerate);
  out["variables"] = object(report.variables);
  return out;
}

void print(const Report& report, std::ostream& out) {
  out << "\nCopy-and-paste the text below in your issue\n\n";
  for (const auto& [name, value] : report.facts) {
    out << fmt::format("- {}: {}\n", name, value);
    if (name != "GPUs") continue;
    for (const std::string& gpu : report.gpus) out << "\t- " << gpu << "\n";
  }
  for (const auto& [name, version] : report.packages) {
    out << fmt::format("- {} version: {}\n", name == "torch" ? "PyTorch" : name, version);
  }
  if (!report.packages.contains("torch")) out << "- PyTorch version: none\n";
  out << "- `Accelerate` default config:";
  out << (report.accelerate_file.empty() ? "" : " " + report.accelerate_file) << "\n";
  for (const auto& [name, value] : report.accelerate) {
    out << fmt::format("\t- {}: {}\n", name, value);
  }
  if (report.accelerate_file.empty()) out << "\tNot found\n";
  out << "- Environment:\n";
  for (const auto& [name, value] : report.variables) {
    out << fmt::format("\t- {}={}\n", name, value);
  }
  if (report.variables.empty()) out << "\tnothing set\n";
}

}  // namespace

bool tells_of_training(const std::string& name) {
  constexpr std::array kNames{"NNODES",
                              "NODE_RANK",
                              "NPROC_PER_NODE",
                              "RANK",
                              "LOCAL_RANK",
                              "WORLD_SIZE",
                              "GROUP_RANK",
                              "LOCAL_WORLD_SIZE",
                              "FORCE_TORCHRUN",
                              "USE_RAY",
                              "MAX_RESTARTS",
                              "LD_LIBRARY_PATH",
                              "LD_PRELOAD",
                              "PYTHONPATH",
                              "VIRTUAL_ENV",
                              "CONDA_PREFIX",
                              "LOGLEVEL",
                              "DISABLE_VERSION_CHECK",
                              "KUBERNETES_SERVICE_HOST"};
  constexpr std::array kBeginnings{"TROUPE_",
                                   "CUDA_",
                                   "NCCL_",
                                   "NVIDIA_",
                                   "OMP_",
                                   "MKL_",
                                   "KMP_",
                                   "PET_",
                                   "TORCH",
                                   "PYTORCH_",
                                   "ACCELERATE_",
                                   "FSDP_",
                                   "DEEPSPEED_",
                                   "DS_",
                                   "HF_",
                                   "SLURM_",
                                   "MASTER_",
                                   "GLOO_",
                                   "PARALLELISM_CONFIG_",
                                   "RDZV_",
                                   "AXOLOTL_",
                                   "WANDB_",
                                   "TRANSFORMERS_"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
         std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [&](const char* beginning) { return name.starts_with(beginning); });
}

std::string shown_variable(const std::string& name, const std::string& value) {
  constexpr std::size_t kShownMax = 400;
  std::string upper = name;
  std::transform(upper.begin(), upper.end(), upper.begin(), ::toupper);
  // TOKENIZERS_… and the like are shown less than they could be: that harms nobody.
  for (const char* word : {"TOKEN", "KEY", "SECRET", "PASSW", "CREDENTIAL", "AUTH", "COOKIE"}) {
    if (upper.find(word) != std::string::npos) return "(set; not shown)";
  }
  // A user and a password in an address.
  if (value.find("://") != std::string::npos && value.find('@') != std::string::npos) {
    return "(set; not shown)";
  }
  std::string shown = value.substr(0, kShownMax) + (value.size() > kShownMax ? "…" : "");
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return shown;
}

void add_env_command(CLI::App& app, CommandContext& context) {
  auto as_json = std::make_shared<bool>(false);
  auto accelerate_file = std::make_shared<std::string>();
  Command(app, context, "env", "Prints what a fault report needs: versions, machine, environment.")
      .flag("--json", *as_json, "print one line of JSON instead of text")
      .option(
          "--config_file,--config-file", *accelerate_file, "FILE",
          "accelerate's configuration file (default: the one that accelerate itself would read)")
      .example("troupe env")
      .note(
          "Values of variables that look like secrets are not shown; check the text all the same "
          "before you publish it.")
      .run([as_json, accelerate_file, &context]() -> Status {
        Report report;
        report.facts.emplace_back(
            "Version", fmt::format("{} (protocol {})", version_line(), wire::kProtocolVersion));
        report.facts.emplace_back("Compiler", __VERSION__);
        add_machine(context, report);
        add_python(context, report);
        TROUPE_RETURN_IF_ERROR(add_accelerate(context, *accelerate_file, report));
        add_variables(report);
        if (*as_json) {
          context.out << json::write(report_json(report)) << "\n";
        } else {
          print(report, context.out);
        }
        return {};
      });
}

}  // namespace troupe::tools
