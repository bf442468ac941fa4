// What `troupe train` refuses: a message that names what was wrong, the exit code of its kind
// (runtime/base/status.h), no process and no temporary file left.

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mount.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "runtime/base/status.h"
#include "tests/support/runs/tiny_run.h"

namespace troupe::tests {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

void check_refused(const TinyRun& tiny, const CommandResult& result, Code code,
                   const std::vector<std::string>& words) {
  CAPTURE(result.err);
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code == exit_code(code));
  CHECK(result.out.empty());
  for (const std::string& word : words) {
    CAPTURE(word);
    CHECK(result.err.find(word) != std::string::npos);
  }
  CHECK(result.err.find("check failed") == std::string::npos);
  tiny.check_nothing_left();
}

void refused(const TinyRun& tiny, const Settings& changes, Code code,
             const std::vector<std::string>& words, const std::vector<std::string>& more = {}) {
  check_refused(tiny, tiny.train("refused", changes, more), code, words);
}

TEST_CASE("keys and values that do not exist are refused with what was probably meant") {
  const TinyRun tiny;
  refused(tiny, {{"learning_rat", "1e-3"}}, Code::kInvalidArgument,
          {"learning_rat", "unknown key", "did you mean 'learning_rate'"});
  refused(tiny, {{"troupe.worker", "2"}}, Code::kInvalidArgument,
          {"troupe.worker", "did you mean 'troupe.workers'"});
  refused(tiny, {{"lr_scheduler_type", "cosin"}}, Code::kInvalidArgument,
          {"lr_scheduler_type", "'cosin'", "did you mean 'cosine'"});
  refused(tiny, {{"stage", "stf"}}, Code::kInvalidArgument, {"stage", "'stf'", "sft"});
  refused(tiny, {{"max_steps", "many"}}, Code::kInvalidArgument, {"max_steps", "many"});
  refused(tiny, {{"cutoff_len", "0"}}, Code::kInvalidArgument, {"cutoff_len", "0"});
  refused(tiny, {{"troupe.workers", "0"}}, Code::kInvalidArgument, {"troupe.workers"});
  refused(tiny, {}, Code::kInvalidArgument, {"kill@stop=4", "step"}, {"--chaos", "kill@stop=4"});
  refused(tiny, {}, Code::kInvalidArgument, {"chaso", "unknown key"}, {"--chaso", "x"});
  CHECK_FALSE(exists(tiny.file("refused")));
}

TEST_CASE("files that are not there are named") {
  const TinyRun tiny;
  auto result = run_command({troupe_program(), "train", "absent.yaml"}, tiny.options());
  check_refused(tiny, result, Code::kNotFound, {"absent.yaml"});
  result = run_command({troupe_program(), "train"}, tiny.options());
  check_refused(tiny, result, Code::kInvalidArgument, {"no configuration"});
  refused(tiny, {{"model_name_or_path", tiny.file("absent")}}, Code::kNotFound,
          {"model_name_or_path", tiny.file("absent")});
  refused(tiny, {{"dataset_dir", tiny.file("absent")}}, Code::kNotFound, {tiny.file("absent")});
  refused(tiny, {{"dataset", "absent"}}, Code::kNotFound, {"absent", "dataset_info.json"});
  refused(tiny, {{"train_from_scratch", ""}}, Code::kNotFound,
          {tiny.file("model"), "model.safetensors"});
  refused(tiny, {{"troupe.train_tokenizer", ""}}, Code::kNotFound, {tiny.file("model")});
  refused(tiny, {{"resume_from_checkpoint", tiny.file("absent")}}, Code::kNotFound,
          {"resume_from_checkpoint", tiny.file("absent")});
  fs::remove(tiny.file("data/tiny.txt"));
  refused(tiny, {}, Code::kNotFound, {"tiny.txt"});
}

TEST_CASE("broken YAML and JSON: file and line are named") {
  const TinyRun tiny;
  write(tiny.file("broken.yaml"), "stage: pt\nmax_steps: 3\n  dataset: [tiny\n");
  auto result = run_command({troupe_program(), "train", "broken.yaml"}, tiny.options());
  check_refused(tiny, result, Code::kInvalidArgument, {"broken.yaml:3"});
  write(tiny.file("broken.json"), "{\n \"stage\": \"pt\",\n \"max_steps\" 3\n}");
  result = run_command({troupe_program(), "train", "broken.json"}, tiny.options());
  check_refused(tiny, result, Code::kInvalidArgument, {"broken.json:3"});
  write(tiny.file("data/dataset_info.json"), "{\n \"tiny\": {\n  \"file_name\": }\n}");
  refused(tiny, {}, Code::kInvalidArgument, {"dataset_info.json:3"});
}

TEST_CASE("broken data sets: the file and the line or row are named") {
  const TinyRun tiny;
  const Settings sft = {{"stage", "sft"}, {"dataset", "questions"}, {"template", "alpaca"}};
  write(tiny.file("data/questions.json"),
        "[\n {\"instruction\": \"a\", \"output\": \"b\"},\n {]\n");
  refused(tiny, sft, Code::kInvalidArgument, {"questions.json:3"});
  write(tiny.file("data/questions.json"), R"([{"instruction": "a", "output": 7}])");
  refused(tiny, sft, Code::kInvalidArgument, {"questions.json", "output"});
  write(tiny.file("data/questions.json"), R"([{"instruction": "a", "output": "b"}])");
  Settings other = sft;
  other["template"] = "alpaka";
  refused(tiny, other, Code::kNotFound, {"alpaka", "alpaca"});
}

TEST_CASE("an empty data set, and one with too few rows for a batch") {
  const TinyRun tiny;
  write(tiny.file("data/tiny.txt"), "");
  refused(tiny, {}, Code::kInvalidArgument, {"tiny"});
  write(tiny.file("data/questions.json"), "[]");
  refused(tiny, {{"stage", "sft"}, {"dataset", "questions"}, {"template", "alpaca"}},
          Code::kInvalidArgument, {"questions"});
}

TEST_CASE("a broken model configuration") {
  const TinyRun tiny;
  const std::string config = contents(tiny.file("model/config.json"));
  write(tiny.file("model/config.json"), config.substr(0, config.size() / 2));
  refused(tiny, {}, Code::kInvalidArgument, {"config.json:"});
  std::string other = config;
  other.replace(other.find("\"hidden_size\": 32"), 17, "\"hidden_size\": 33");
  write(tiny.file("model/config.json"), other);
  refused(tiny, {}, Code::kInvalidArgument, {"hidden_size", "config.json"});
  other = config;
  other.replace(other.find("\"llama\""), 7, "\"mamba\"");
  write(tiny.file("model/config.json"), other);
  refused(tiny, {}, Code::kUnsupported, {"mamba", "config.json"});
}

TEST_CASE("damaged weights are refused before anything is started") {
  const TinyRun tiny;
  tiny.must_train("base", {{"max_steps", "1"}});
  const Settings on = {{"model_name_or_path", tiny.file("base")},
                       {"train_from_scratch", ""},
                       {"troupe.train_tokenizer", ""}};
  const std::string path = tiny.file("base/model.safetensors");
  const std::string good = contents(path);
  for (const std::size_t size : {good.size() - 100, good.size() / 2, std::size_t{200},
                                 std::size_t{9}, std::size_t{8}, std::size_t{3}, std::size_t{0}}) {
    CAPTURE(size);
    write(path, good.substr(0, size));
    const auto result = tiny.train("refused", on);
    CHECK(result.exit_code == exit_code(Code::kDataLoss));
    CHECK(result.err.find("model.safetensors") != std::string::npos);
    CHECK(result.err.find("run-") == std::string::npos);  // no cluster was brought up
  }
  std::string huge = good;  // a header of 2⁶³ bytes
  huge[7] = '\x7f';
  write(path, huge);
  const auto result = tiny.train("refused", on);
  CHECK(result.exit_code == exit_code(Code::kInvalidArgument));
  CHECK(result.err.find("model.safetensors") != std::string::npos);
  write(path, good);
  tiny.must_train("on", on);
}

TEST_CASE("weights of another shape than the configuration says") {
  const TinyRun tiny;
  tiny.must_train("base", {{"max_steps", "1"}});
  std::string config = contents(tiny.file("base/config.json"));
  const std::string key = "\"intermediate_size\": 48";
  REQUIRE(config.find(key) != std::string::npos);
  config.replace(config.find(key), key.size(), "\"intermediate_size\": 64");
  write(tiny.file("base/config.json"), config);
  const auto result = tiny.train("refused", {{"model_name_or_path", tiny.file("base")},
                                             {"train_from_scratch", ""},
                                             {"troupe.train_tokenizer", ""}});
  CAPTURE(result.err);
  CHECK(result.exit_code != 0);
  CHECK(result.err.find("mlp") != std::string::npos);
  tiny.check_nothing_left();
}

TEST_CASE("a tokenizer with more ids than the model has rows; a broken one") {
  const TinyRun tiny;
  refused(tiny, {{"troupe.train_tokenizer", "400"}}, Code::kInvalidArgument,
          {"vocab_size", "304", "config.json"});
  tiny.must_train("base", {{"max_steps", "1"}});
  const Settings on = {{"model_name_or_path", tiny.file("base")},
                       {"train_from_scratch", ""},
                       {"troupe.train_tokenizer", ""}};
  const std::string path = tiny.file("base/tokenizer.json");
  const std::string good = contents(path);
  write(path, good.substr(0, good.size() / 2));
  refused(tiny, on, Code::kInvalidArgument, {"tokenizer.json:"});
}

TEST_CASE("an output directory that cannot be written") {
  const TinyRun tiny;
  // Under a file: refused to everybody, to root too.
  refused(tiny, {{"output_dir", tiny.file("data/tiny.txt/out")}}, Code::kUnavailable,
          {"output_dir", tiny.file("data/tiny.txt/out")});
  write(tiny.file("taken"), "a file");
  refused(tiny, {{"output_dir", tiny.file("taken")}}, Code::kInvalidArgument,
          {"output_dir", tiny.file("taken")});
}

TEST_CASE("an output directory with results is not overwritten unasked") {
  const TinyRun tiny;
  tiny.must_train("refused", {{"max_steps", "1"}, {"save_strategy", "no"}});
  const std::string before = contents(tiny.file("refused/model.safetensors"));
  refused(tiny, {{"overwrite_output_dir", "false"}}, Code::kFailedPrecondition,
          {"overwrite_output_dir", tiny.file("refused")});
  CHECK((before == contents(tiny.file("refused/model.safetensors"))));
}

TEST_CASE("a learning rate at which the loss explodes ends the run, the last checkpoint named") {
  const TinyRun tiny;
  const auto result =
      tiny.train("refused", {{"learning_rate", "1e30"}, {"max_steps", "40"}, {"save_steps", "40"}});
  check_refused(tiny, result, Code::kFailedPrecondition,
                {"step 3 was skipped", "not finite", "10 steps in a row were skipped",
                 "lower learning_rate", "no checkpoint was written"});
  CHECK_FALSE(exists(tiny.file("refused/model.safetensors")));
}

TEST_CASE("a batch that does not fit in memory") {
  const TinyRun tiny;
  refused(tiny, {{"per_device_train_batch_size", "1048576"}, {"cutoff_len", "1024"}},
          Code::kOutOfMemory, {"per_device_train_batch_size"});
}

// A file system of so many bytes, where the test may mount one.
class SmallDisk {
 public:
  SmallDisk(const std::string& path, std::uint64_t bytes) : path_(path) {
    fs::create_directories(path);
    const std::string options = "size=" + std::to_string(bytes);
    mounted_ = ::mount("tmpfs", path.c_str(), "tmpfs", 0, options.c_str()) == 0;
    if (!mounted_) {
      std::printf("SKIPPED: no small file system can be mounted (%s)\n", std::strerror(errno));
    }
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }

 private:
  std::string path_;
  bool mounted_ = false;
};

std::uint64_t size_of(const std::string& path) {
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    bytes += entry.is_regular_file() ? (entry.file_size() + 4095) / 4096 * 4096 : 4096;
  }
  return bytes;
}

TEST_CASE("a run that could never make a step is refused before anything is started") {
  const TinyRun tiny;
  const auto few = tiny.train(
      "few", {{"max_samples", "3"}, {"dataloader_drop_last", "true"}, {"max_steps", "2"}});
  check_refused(tiny, few, Code::kInvalidArgument,
                {"dataloader_drop_last leaves nothing: 3 samples are fewer than 2 workers × 2"});
  CHECK(few.err.find("run-") == std::string::npos);
}

TEST_CASE("a full disk while saving: training goes on, the last checkpoint is good") {
  const TinyRun tiny;
  tiny.must_train("oracle");
  const std::uint64_t checkpoint = size_of(tiny.file("oracle/checkpoint-3"));
  // One checkpoint and the results have room, a second checkpoint has not.
  const SmallDisk disk(tiny.file("small"), checkpoint * 19 / 10);
  if (!disk.mounted()) return;
  const auto result = tiny.must_train("small");
  CHECK(result.err.find("warning: checkpoint-6 was not written") != std::string::npos);
  CHECK(result.err.find("; 2 checkpoints could not be written\n") != std::string::npos);
  const auto names = event_names(tiny.file("small"));
  CHECK(std::count(names.begin(), names.end(), "checkpoint_failed") == 2);
  CHECK(result.err.find("No space left") != std::string::npos);
  check_same_result(tiny.file("small"), tiny.file("oracle"));
  CHECK(exists(tiny.file("small/checkpoint-3")));
  CHECK_FALSE(exists(tiny.file("small/checkpoint-6")));
  const auto resumed =
      tiny.must_train("resumed", {{"resume_from_checkpoint", tiny.file("small/checkpoint-3")}});
  CHECK((contents(tiny.file("resumed/model.safetensors")) ==
         contents(tiny.file("oracle/model.safetensors"))));
}

// Takes all the room that a disk has left.
void fill(const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  const std::string zeros(4096, '\0');
  while (out.write(zeros.data(), 4096).flush()) {
  }
}

TEST_CASE("a disk that is full at the end: an error that names the last good checkpoint") {
  const TinyRun tiny;
  tiny.must_train("oracle");
  const SmallDisk disk(tiny.file("small"), 4 * size_of(tiny.file("oracle/checkpoint-3")));
  if (!disk.mounted()) return;
  BackgroundCommand run(
      tiny.train_arguments(
          "small", {{"max_steps", "300"}, {"save_steps", "150"}, {"troupe.hold_timeout_s", "0"}}),
      tiny.options());
  REQUIRE_MESSAGE(run.wait_for_output("saved " + tiny.file("small/checkpoint-150"), seconds(30)),
                  run.output());
  fill(tiny.file("small/filler"));
  CHECK(run.wait(seconds(30)) == exit_code(Code::kResourceExhausted));
  INFO(run.output());
  CHECK(run.output().find("No space left") != std::string::npos);
  CHECK(run.output().find("last good checkpoint is " + tiny.file("small/checkpoint-150")) !=
        std::string::npos);
  tiny.check_nothing_left();
}

TEST_CASE("a run whose results could never find room is refused, by plan and by train") {
  const TinyRun tiny;
  tiny.must_train("oracle");
  const std::uint64_t checkpoint = size_of(tiny.file("oracle/checkpoint-3"));
  const SmallDisk disk(tiny.file("small"), checkpoint);
  if (!disk.mounted()) return;
  const auto refused = tiny.train("small");
  check_refused(
      tiny, refused, Code::kResourceExhausted,
      {"output_dir " + tiny.file("small") + " has room for ", "for one checkpoint and the model"});
  CHECK(refused.err.find("run-") == std::string::npos);
  auto arguments = tiny.train_arguments("small");
  arguments[1] = "plan";
  const auto planned = run_command(arguments, tiny.options());
  CHECK(planned.exit_code == exit_code(Code::kResourceExhausted));
  CHECK_MESSAGE(planned.out.find("disk: ") != std::string::npos, planned.err);
  CHECK(planned.err.find("for one checkpoint and the model") != std::string::npos);
}

TEST_CASE("a finished model that finds no room is kept in memory until it is saved somewhere") {
  const TinyRun tiny;
  const Settings settings = {{"max_steps", "150"}, {"save_strategy", "no"}};
  tiny.must_train("oracle", settings);
  const std::string model = contents(tiny.file("oracle/model.safetensors"));
  const SmallDisk disk(tiny.file("small"), 4 * model.size());
  if (!disk.mounted()) return;
  const auto start = [&](const Settings& more) {
    Settings all = settings;
    all.insert(more.begin(), more.end());
    auto run =
        std::make_unique<BackgroundCommand>(tiny.train_arguments("small", all), tiny.options());
    REQUIRE_MESSAGE(run->wait_for_output("step 3/150 ", seconds(30)), run->output());
    fill(tiny.file("small/filler"));
    return run;
  };
  SUBCASE("with troupe save") {
    const auto run = start({});
    REQUIRE_MESSAGE(run->wait_for_output("is kept in memory", seconds(30)), run->output());
    const std::string id = run_id(run->output());
    CHECK(run->output().find("troupe save " + id + " DIR") != std::string::npos);
    const auto saved =
        run_command({troupe_program(), "save", id, tiny.file("large")}, tiny.options());
    CHECK_MESSAGE(saved.exit_code == 0, saved.err);
    CHECK(saved.out == "The model of " + id + " is in " + tiny.file("large") + "\n");
    CHECK_MESSAGE(run->wait(seconds(30)) == 0, run->output());
    CHECK(run->output().find("the model is in " + tiny.file("large")) != std::string::npos);
    CHECK((contents(tiny.file("large/model.safetensors")) == model));
    CHECK(exists(tiny.file("large/config.json")));
    CHECK(exists(tiny.file("large/tokenizer.json")));
    // Afterwards there is nothing to save.
    const auto late =
        run_command({troupe_program(), "save", id, tiny.file("late")}, tiny.options());
    CHECK(late.exit_code != 0);
    CHECK(late.err.find("does not run any more") != std::string::npos);
  }
  SUBCASE("when there is room: no line of its logs is lost either") {
    const auto run = start({});
    REQUIRE_MESSAGE(run->wait_for_output("is kept in memory", seconds(30)), run->output());
    fs::remove(tiny.file("small/filler"));
    CHECK_MESSAGE(run->wait(seconds(30)) == 0, run->output());
    CHECK((contents(tiny.file("small/model.safetensors")) == model));
    CHECK(steps_of(tiny.file("small")).size() == 150);
  }
  SUBCASE("at once in the second folder that the configuration names") {
    const auto run = start({{"troupe.second_output_dir", tiny.file("second")}});
    CHECK_MESSAGE(run->wait(seconds(30)) == 0, run->output());
    CHECK((contents(tiny.file("second/model.safetensors")) == model));
  }
  SUBCASE("SIGTERM ends the wait in seconds") {
    const auto run = start({{"troupe.stop_timeout_s", "2"}});
    REQUIRE_MESSAGE(run->wait_for_output("is kept in memory", seconds(30)), run->output());
    run->kill(SIGTERM);
    CHECK(run->wait(seconds(10)) == 128 + SIGTERM);
  }
  tiny.check_nothing_left();
}

}  // namespace
}  // namespace troupe::tests
