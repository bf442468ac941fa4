#include "tools/gpu_check/train_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "runtime/base/hash.h"
#include "runtime/process/spawn.h"

namespace troupe::tools::gpu {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(20);
constexpr std::uint64_t kLogBytesMax = 16u << 20;
constexpr std::size_t kToldBytes = 1500;

std::string data_text() {
  static constexpr std::array<const char*, 12> kWords = {"counting", "rows",    "of",  "small",
                                                         "words",    "in",      "an",  "order",
                                                         "that",     "repeats", "and", "turns"};
  std::string lines;
  std::uint32_t state = 1;
  for (int row = 0; row < 256; ++row) {
    lines += R"({"text": ")";
    for (int word = 0; word < 400; ++word) {
      state = state * 1664525u + 1013904223u;
      lines += kWords[((state >> 24) + static_cast<std::uint32_t>(word)) % kWords.size()];
      lines += ' ';
    }
    lines += "\"}\n";
  }
  return lines;
}

std::string yaml_text(const std::string& folder, const RunSpec& spec) {
  return fmt::format(R"(model_name_or_path: {0}/model
train_from_scratch: true
stage: pt
do_train: true
finetuning_type: full
dataset: words
dataset_dir: {0}/data
packing: true
output_dir: {0}/output
overwrite_output_dir: true
logging_steps: 1
save_strategy: "no"
max_steps: {1}
seed: 7
learning_rate: 1.0e-3
lr_scheduler_type: constant
{2}
troupe.device: {3}
troupe.train_tokenizer: 300
)",
                     folder, spec.steps, spec.settings, spec.device);
}

Status write(const std::string& path, const std::string& text) {
  PosixFileSystem files;
  return write_file_atomically(files, path, text);
}

}  // namespace

Result<WorkFolder> WorkFolder::create() {
  const char* where = std::getenv("TMPDIR");
  std::string name = fmt::format("{}/troupe-gpu-check-XXXXXX", where ? where : "/tmp");
  if (::mkdtemp(name.data()) == nullptr)
    return error(Code::kResourceExhausted, "making {}: {}", name, std::strerror(errno));
  return WorkFolder(name);
}
WorkFolder::WorkFolder(WorkFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
WorkFolder::~WorkFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

Result<std::string> TrainProgram::lay_out(const std::string& folder, const std::string& name,
                                          const RunSpec& spec) {
  PosixFileSystem files;
  std::string here = folder + "/" + name;
  for (const char* part : {"/model", "/data", "/home"})
    TROUPE_RETURN_IF_ERROR(files.create_directories(here + part));
  TROUPE_RETURN_IF_ERROR(write(here + "/model/config.json", spec.model));
  TROUPE_RETURN_IF_ERROR(write(here + "/data/words.jsonl", data_text()));
  TROUPE_RETURN_IF_ERROR(
      write(here + "/data/dataset_info.json",
            R"({"words": {"file_name": "words.jsonl", "columns": {"prompt": "text"}}})"));
  TROUPE_RETURN_IF_ERROR(write(here + "/run.yaml", yaml_text(here, spec)));
  return here;
}

namespace {

Result<UniqueFd> open_for_output(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  if (!file.valid()) return error(Code::kPermissionDenied, "{}: {}", path, std::strerror(errno));
  return file;
}

// `troupe COMMAND run.yaml …` in the run's folder, its output in `output` and its words in `log`.
Result<process::Child> start_troupe(const std::string& program,
                                    std::map<std::string, std::string> environment,
                                    const std::string& here, const std::string& output,
                                    std::vector<std::string> words) {
  const UniqueFd out = TROUPE_TRY(open_for_output(here + "/" + output));
  const UniqueFd log = TROUPE_TRY(open_for_output(here + "/log"));
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  environment["HOME"] = here + "/home";
  words.insert(words.begin(), program);
  return process::spawn({.path = program,
                         .argv = std::move(words),
                         .environment = std::move(environment),
                         .descriptors = {{nothing.get(), 0}, {out.get(), 1}, {log.get(), 2}}});
}

}  // namespace

Result<TrainProgram> TrainProgram::start(const std::string& program,
                                         std::map<std::string, std::string> environment,
                                         const std::string& folder, const std::string& name,
                                         const RunSpec& spec) {
  const std::string here = TROUPE_TRY(lay_out(folder, name, spec));
  auto child = TROUPE_TRY(
      start_troupe(program, std::move(environment), here, "log", {"train", here + "/run.yaml"}));
  return TrainProgram(here, std::move(child));
}

Result<std::string> TrainProgram::planned(const std::string& program,
                                          std::map<std::string, std::string> environment,
                                          const std::string& folder, const std::string& name,
                                          const RunSpec& spec, Duration limit) {
  const std::string here = TROUPE_TRY(lay_out(folder, name, spec));
  auto child = TROUPE_TRY(start_troupe(program, std::move(environment), here, "plan.json",
                                       {"plan", here + "/run.yaml", "--json"}));
  TrainProgram plan(here, std::move(child));
  TROUPE_RETURN_IF_ERROR(plan.wait(limit));
  PosixFileSystem files;
  return files.read(here + "/plan.json", kLogBytesMax);
}

TrainProgram::~TrainProgram() {
  if (!child_) return;
  // Its daemons and trainers watch it and end with it, whatever group they are in.
  (void)process::kill_group(child_->pid, SIGKILL);
  (void)process::wait(*child_, Deadline::after(std::chrono::seconds(20)));
}

Status TrainProgram::failure(const std::string& what) const {
  PosixFileSystem files;
  std::string said = files.read(folder_ + "/log", kLogBytesMax).value_or("");
  if (said.size() > kToldBytes) said = "…" + said.substr(said.size() - kToldBytes);
  return error(Code::kFailedPrecondition, "{}; it said: {}", what, said);
}

Status TrainProgram::wait(Duration limit) {
  const auto ended = process::wait(*child_, Deadline::after(limit));
  if (!ended.ok())
    return failure(fmt::format("the run did not end within {} s",
                               std::chrono::duration_cast<std::chrono::seconds>(limit).count()));
  child_.reset();
  if (ended->signal != 0) return failure(fmt::format("the run died of signal {}", ended->signal));
  if (ended->exit_code != 0)
    return failure(fmt::format("the run ended with code {}", ended->exit_code));
  return {};
}

Status TrainProgram::wait_until(const std::string& what, const std::function<bool()>& done,
                                Duration limit) {
  const Deadline deadline = Deadline::after(limit);
  while (!done()) {
    if (deadline.passed())
      return failure(fmt::format("{} did not come within {} s", what,
                                 std::chrono::duration_cast<std::chrono::seconds>(limit).count()));
    const auto ended = process::wait(*child_, Deadline::after(kPollInterval));
    if (!ended.ok()) continue;
    child_.reset();
    if (done()) return {};
    return failure(fmt::format("the run ended before {}", what));
  }
  return {};
}

Status TrainProgram::wait_steps(std::int64_t count, Duration limit) {
  PosixFileSystem files;
  const std::string path = output_folder() + "/" + train::kStepsFile;
  return wait_until(
      fmt::format("step {}", count), [&] { return train::last_step_in(files, path) >= count; },
      limit);
}

Status TrainProgram::wait_text(const std::string& file, const std::string& text, Duration limit) {
  PosixFileSystem files;
  const std::string path = output_folder() + "/" + file;
  const auto there = [&] {
    return files.read(path, kLogBytesMax).value_or("").find(text) != std::string::npos;
  };
  return wait_until(fmt::format("'{}' in {}", text, file), there, limit);
}

Status TrainProgram::kill_rank(int rank) const {
  std::string run;
  for (const train::RunEvent& event : TROUPE_TRY(events()))
    if (!event.run.empty()) run = event.run;
  PosixFileSystem files;
  // As ps shows them.
  const std::string wanted = fmt::format(" --run {} --rank {} ", run, rank);
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", failed)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::string line = files.read(entry.path().string() + "/cmdline", 1 << 16).value_or("");
    std::replace(line.begin(), line.end(), '\0', ' ');
    if ((line + " ").find(wanted) == std::string::npos) continue;
    if (::kill(static_cast<pid_t>(std::atoi(name.c_str())), SIGKILL) == 0) return {};
  }
  return failure(fmt::format("rank {} of {} has no process", rank, run));
}

Result<std::vector<train::StepRecord>> TrainProgram::steps() const {
  PosixFileSystem files;
  return train::read_steps(files, output_folder() + "/" + train::kStepsFile,
                           train::DamagedLines::kSkip);
}

Result<std::vector<train::RunEvent>> TrainProgram::events() const {
  PosixFileSystem files;
  return TROUPE_TRY(train::read_events(files, output_folder() + "/events.jsonl")).events;
}

Result<std::uint64_t> TrainProgram::weights_hash() const {
  PosixFileSystem files;
  const auto file = TROUPE_TRY(files.map(output_folder() + "/model.safetensors"));
  return xxh3_64(file->bytes());
}

std::string config_text(const LlamaShape& s) {
  return fmt::format(
      R"({{"architectures": ["{}"], "model_type": "{}", "hidden_size": {}, "intermediate_size": {},
"num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {}, "vocab_size": {},
"max_position_embeddings": {}, "tie_word_embeddings": {}, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
"initializer_range": 0.02, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
"torch_dtype": "float32"}})",
      s.qwen2 ? "Qwen2ForCausalLM" : "LlamaForCausalLM", s.qwen2 ? "qwen2" : "llama", s.hidden,
      s.inner, s.layers, s.heads, s.key_heads, s.vocabulary, s.positions, s.tied);
}

}  // namespace troupe::tools::gpu
