#include "tests/support/runs/tiny_run.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "runtime/base/file_system.h"
#include "runtime/base/random.h"

namespace troupe::tests {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
  "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 304, "max_position_embeddings": 96,
  "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "initializer_range": 0.02,
  "bos_token_id": 0, "eos_token_id": 0})";

constexpr const char* kDatasets = R"({
  "tiny": {"file_name": "tiny.txt", "columns": {"prompt": "text"}},
  "questions": {"file_name": "questions.json"}})";

constexpr const char* kWords[] = {"river", "stone",  "walks", "under", "the",   "old",  "bridge",
                                  "and",   "nobody", "sees",  "a",     "green", "lamp", "burning"};

std::string sentence(SeededRandom& random, int words) {
  std::string text;
  for (int i = 0; i < words; ++i) {
    text += (i > 0 ? " " : "") + std::string(kWords[random.below(std::size(kWords))]);
  }
  return text;
}

// The launcher's variables, so that those of the tests' own surroundings do not reach the runs.
constexpr const char* kLauncherVariables[] = {
    "USE_RAY",        "FORCE_TORCHRUN", "NNODES",       "NODE_RANK",
    "NPROC_PER_NODE", "MASTER_ADDR",    "MASTER_PORT",  "RDZV_ID",
    "MIN_NNODES",     "MAX_NNODES",     "MAX_RESTARTS", "TROUPE_ADDRESS",
    "RANK",           "LOCAL_RANK",     "WORLD_SIZE",   "SLURM_PROCID"};

bool temporary_name(const std::string& name) {
  return name.rfind("tmp", 0) == 0 || name.rfind(".troupe-", 0) == 0 ||
         name.find(".tmp") != std::string::npos;
}

}  // namespace

TinyRun::TinyRun() {
  for (const char* folder : {"model", "data", "home", "tmp"}) fs::create_directories(file(folder));
  write(file("model/config.json"), kConfig);
  write(file("data/dataset_info.json"), kDatasets);
  SeededRandom random(11);
  std::string text;
  for (int line = 0; line < 120; ++line) text += sentence(random, 14) + "\n";
  write(file("data/tiny.txt"), text);
  json::Array questions;
  for (int i = 0; i < 40; ++i) {
    questions.push_back(json::Object{{"instruction", sentence(random, 3)},
                                     {"input", i % 3 == 0 ? sentence(random, 2) : ""},
                                     {"output", sentence(random, 4)}});
  }
  write(file("data/questions.json"), json::write(questions));
}

std::vector<std::string> TinyRun::train_arguments(const std::string& output,
                                                  const Settings& changes) const {
  Settings settings = {{"model_name_or_path", file("model")},
                       {"train_from_scratch", "true"},
                       {"stage", "pt"},
                       {"do_train", "true"},
                       {"finetuning_type", "full"},
                       {"dataset", "tiny"},
                       {"dataset_dir", file("data")},
                       {"cutoff_len", "24"},
                       {"output_dir", file(output)},
                       {"overwrite_output_dir", "true"},
                       {"logging_steps", "1"},
                       {"save_steps", "3"},
                       {"per_device_train_batch_size", "2"},
                       {"learning_rate", "1.0e-2"},
                       {"max_steps", "8"},
                       {"troupe.workers", "2"},
                       {"troupe.threads_per_worker", "1"},
                       {"troupe.train_tokenizer", "290"}};
  for (const auto& [key, value] : changes) settings[key] = value;
  std::vector<std::string> arguments = {troupe_program(), "train"};
  for (const auto& [key, value] : settings) {
    if (!value.empty()) arguments.push_back(key + "=" + value);
  }
  return arguments;
}

CommandOptions TinyRun::options(const std::map<std::string, std::string>& environment) const {
  CommandOptions options{.environment = environment, .directory = path()};
  for (const char* name : kLauncherVariables) options.environment.try_emplace(name, "");
  options.environment.emplace("HOME", file("home"));
  options.environment.emplace("TMPDIR", file("tmp"));
  return options;
}

CommandResult TinyRun::train(const std::string& output, const Settings& changes,
                             const std::vector<std::string>& more,
                             const std::map<std::string, std::string>& environment) const {
  auto arguments = train_arguments(output, changes);
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_command(arguments, options(environment));
}

CommandResult TinyRun::must_train(const std::string& output, const Settings& changes,
                                  const std::vector<std::string>& more,
                                  const std::map<std::string, std::string>& environment) const {
  auto result = train(output, changes, more, environment);
  REQUIRE_FALSE(result.timed_out);
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  check_nothing_left();
  return result;
}

std::vector<pid_t> TinyRun::processes() const {
  const std::string mark = "HOME=" + file("home") + '\0';
  std::vector<pid_t> found;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator("/proc", ec)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream in(entry.path() / "environ", std::ios::binary);
    std::stringstream environment;
    environment << in.rdbuf();
    if (environment.str().find(mark) != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

bool TinyRun::processes_gone() const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (!processes().empty()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // nothing tells of others' ends
  }
  return true;
}

std::vector<std::string> TinyRun::leftovers() const {
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(path())) {
    const std::string name = entry.path().filename();
    const bool in_tmp = entry.path().parent_path() == file("tmp");
    if (in_tmp || (name != "tmp" && temporary_name(name))) found.push_back(entry.path());
  }
  return found;
}

void TinyRun::check_nothing_left() const {
  CHECK_MESSAGE(processes_gone(), "processes are left");
  for (const std::string& name : leftovers()) FAIL_CHECK("left behind: ", name);
}

std::string troupe_program() { return bin_dir() + "/troupe"; }

std::string contents(const std::string& path) {
  PosixFileSystem files;
  auto content = files.read(path, 64u << 20);
  REQUIRE_MESSAGE(content.ok(), content.status().to_string());
  return std::move(content).value();
}

void write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

bool exists(const std::string& path) { return fs::exists(path); }

std::vector<train::StepRecord> steps_of(const std::string& output) {
  PosixFileSystem files;
  auto steps = train::read_steps(files, output + "/steps.jsonl");
  REQUIRE_MESSAGE(steps.ok(), steps.status().to_string());
  return std::move(steps).value();
}

std::vector<json::Value> json_lines(const std::string& path) {
  std::vector<json::Value> lines;
  std::istringstream in(contents(path));
  for (std::string line; std::getline(in, line);) {
    auto value = json::parse(line, path);
    REQUIRE_MESSAGE(value.ok(), value.status().to_string());
    lines.push_back(std::move(value).value());
  }
  return lines;
}

std::vector<json::Value> events(const std::string& output) {
  auto lines = json_lines(output + "/events.jsonl");
  std::erase_if(lines, [](const json::Value& line) {
    const auto name = json::find_string(line, "event").value_or("");
    // Who is slow for a moment is a matter of the machine.
    return name == "start" || name == "end" || name == "fault" || name == "straggler";
  });
  return lines;
}

std::vector<std::string> event_names(const std::string& output) {
  std::vector<std::string> names;
  for (const auto& line : events(output)) {
    names.push_back(json::find_string(line, "event").value_or("?"));
  }
  return names;
}

std::string run_id(const std::string& output) {
  const auto at = output.find("run-");
  REQUIRE(at != std::string::npos);
  return output.substr(at, 12);
}

std::vector<pid_t> trainers(const std::string& run, int rank) {
  return processes_with("host --actor TrainerActor --run " + run + " --rank " +
                        std::to_string(rank));
}

std::vector<pid_t> controllers(const std::string& run) {
  return processes_with("host --actor TrainController --run " + run);
}

void check_same_result(const std::string& output, const std::string& expected) {
  CHECK(train::strip_timings(contents(output + "/steps.jsonl")) ==
        train::strip_timings(contents(expected + "/steps.jsonl")));
  CHECK((contents(output + "/model.safetensors") == contents(expected + "/model.safetensors")));
}

void check_same_losses(const std::string& output, const std::string& expected) {
  const auto got = steps_of(output);
  const auto wanted = steps_of(expected);
  REQUIRE(got.size() == wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i].loss == doctest::Approx(wanted[i].loss).epsilon(1e-5));
  }
}

}  // namespace troupe::tests
