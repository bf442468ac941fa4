#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/support/faulty_file_system.h"
#include "train/report/format.h"
#include "train/report/step_log.h"
#include "train/report/trainer_state.h"

namespace troupe::train {
namespace {

using tests::FaultyFileSystem;

std::string read(FileSystem& files, const std::string& path) {
  return files.read(path, 1 << 20).value();
}

TEST_CASE("numbers for people") {
  CHECK(format_duration(0) == "0:00:00");
  CHECK(format_duration(3723.9) == "1:02:03");
  CHECK(format_duration(360000) == "100:00:00");
  CHECK(format_duration(-1) == "0:00:00");
  CHECK(format_duration(std::nan("")) == "0:00:00");
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(format_bytes(5'000'000'000) == "4.7 GiB");
  CHECK(format_bytes(1024 * 1024 - 1) == "1.0 MiB");
  CHECK(format_count(999) == "999");
  CHECK(format_count(1234) == "1.2k");
  CHECK(format_count(999'999) == "1.0M");
  CHECK(format_count(35.1e6) == "35.1M");
  CHECK(format_scientific(2.13449) == "2.1345");
  CHECK(format_scientific(3e-4) == "3.000e-04");
  CHECK(round_to(2.675, 2) == 2.67);  // as Python's round
  CHECK(hex_float(3) == "0x1.8p+1");
}

TEST_CASE("JSON as Python writes it, NaN included, and back") {
  const json::Object object{
      {"a", 1},
      {"b", std::nan("")},
      {"c", json::Array{1.0, -std::numeric_limits<double>::infinity(), "NaN \"x\""}},
      {"d", nullptr},
      {"e", 1e-5}};
  const std::string text = python_json(object);
  CHECK(text == R"({"a": 1, "b": NaN, "c": [1.0, -Infinity, "NaN \"x\""], "d": null, "e": 1e-05})");
  const auto back = parse_python_json(text, "x").value();
  CHECK(std::isnan(*json::find_number(back, "b")));
  CHECK(python_json(back) == text);
  CHECK(!parse_python_json("{\"a\": NaNo}", "x").ok());
}

TEST_CASE("a step's line holds every bit") {
  FaultyFileSystem files;
  StepRecord record{.step = 3,
                    .loss = 0.1,
                    .grad_norm = 1.0 / 3,
                    .learning_rate = 3e-4,
                    .tokens = 4096,
                    .epoch = 1,
                    .next_sample = 24};
  record.extra["forward_s"] = 0.5;
  CHECK(
      step_line(record) ==
      R"({"step": 3, "loss": "0x1.999999999999ap-4", "grad_norm": "0x1.5555555555555p-2", "lr": 0.0003, "tokens": 4096, "epoch": 1, "next_sample": 24, "forward_s": 0.5})");
  auto log = LineFile::open(files, "steps.jsonl").value();
  CHECK(log.append(step_line(record)).ok());
  record.step = 4;
  record.loss = std::nan("");
  CHECK(log.append(step_line(record)).ok());
  CHECK(log.sync().ok());
  const auto records = read_steps(files, "steps.jsonl").value();
  REQUIRE(records.size() == 2);
  CHECK(last_step_in(files, "steps.jsonl") == 4);
  CHECK(records[0].loss == 0.1);
  CHECK(records[0].grad_norm == 1.0 / 3);
  CHECK(records[0].tokens == 4096);
  CHECK(records[0].epoch == 1);
  CHECK(records[0].next_sample == 24);
  CHECK(*json::find_number(records[0].extra, "forward_s") == 0.5);
  CHECK(std::isnan(records[1].loss));
  CHECK(log.append("{").ok());
  CHECK(read_steps(files, "steps.jsonl").status().message() == "steps.jsonl: line 3 is no JSON");
  CHECK(last_step_in(files, "nowhere.jsonl") == 0);
}

TEST_CASE("a step's line: why it was skipped, losses that are not finite, times apart") {
  FaultyFileSystem files;
  StepRecord record{.step = 7,
                    .loss = -std::nan(""),
                    .grad_norm = -std::numeric_limits<double>::infinity(),
                    .learning_rate = 0.5,
                    .tokens = 100,
                    .skipped = "the gradient of lm_head.weight on rank 1 is not finite"};
  record.extra["generation"] = 2;
  const std::string bare = step_line(record);
  CHECK(
      bare ==
      R"({"step": 7, "loss": "nan", "grad_norm": "-inf", "lr": 0.5, "tokens": 100, "skipped": "the gradient of lm_head.weight on rank 1 is not finite", "generation": 2})");
  record.seconds = {.data = 0.25, .forward = 0.5, .backward = 1.00000049, .communication = 0.25};
  record.rates = {.tokens_per_s = 50, .gflops = 12.345, .gemm_share = 0.54321, .bytes_sent = 4096};
  record.operators = {{"head gemm nt", 0.125}, {"norm", 0.0000004}, {"gemm nt", 0.5}};
  record.device_bytes = {{"parameters", 4'000'000'000}, {kDeviceInUse, 5'000'000'000}};
  const std::string timed = step_line(record);
  CHECK(
      timed.substr(bare.size() - 1) ==
      R"(, "seconds": {"data": 0.25, "forward": 0.5, "backward": 1.0, "communication": 0.25, "optimizer": 0.0, "checkpoint": 0.0, "stall": 0.0}, "tokens_per_s": 50.0, "gflops": 12.35, "gemm_share": 0.5432, "bytes_sent": 4096, "operators": {"head gemm nt": 0.125, "norm": 0.0, "gemm nt": 0.5}, "device_bytes": {"parameters": 4000000000, "in_use": 5000000000}})");

  REQUIRE(write_file_atomically(files, "steps.jsonl", timed + "\n").ok());
  const auto read = read_steps(files, "steps.jsonl").value();
  REQUIRE(read.size() == 1);
  CHECK(std::isnan(read[0].loss));
  CHECK(read[0].grad_norm == record.grad_norm);
  CHECK(read[0].skipped == record.skipped);
  CHECK(read[0].extra == record.extra);
  CHECK(read[0].seconds.communication == 0.25);
  CHECK(read[0].seconds.backward == 1);
  CHECK(read[0].rates.gemm_share == 0.5432);
  CHECK(read[0].rates.bytes_sent == 4096);
  record.operators[1].seconds = 0;
  CHECK(read[0].operators == record.operators);
  CHECK(read[0].device_bytes == record.device_bytes);
  CHECK(step_line(without_timings(read[0])) == bare);

  // Equal runs have equal texts without timings.
  CHECK(strip_timings(timed + "\n" + timed + "\n") == bare + "\n" + bare + "\n");
  CHECK(strip_timings(bare + "\n") == bare + "\n");
  CHECK(strip_timings("{\"torn\n" + timed) == "{\"torn\n" + bare);
  CHECK(strip_timings("").empty());
}

TEST_CASE("seconds by phase") {
  StepSeconds step{.data = 0.002,
                   .forward = 0,
                   .backward = 0.031,
                   .communication = 0.004,
                   .optimizer = 0.003,
                   .checkpoint = 0.0001,
                   .stall = 0.0009};
  CHECK(step.total() == doctest::Approx(0.041));
  CHECK(describe_phases(step) == "data 5 % bwd 76 % comm 10 % opt 7 % stall 2 %");
  CHECK(describe_phases({}).empty());
  CHECK(step_seconds_from_json(to_json(step)) == step);
  CHECK(step_seconds_from_json(json::Object{}) == StepSeconds{});
  step += {.forward = 1, .stall = 1};
  CHECK(step.forward == 1);
  CHECK(step.stall == 1.0009);
  CHECK(step.total() == doctest::Approx(2.041));
}

TEST_CASE("tokens and arithmetic per second") {
  const StepSeconds seconds{.forward = 0.5, .backward = 1.5};
  const StepRates rates = step_rates(1000, 8e9, 1.6e10, seconds);
  CHECK(rates == StepRates{500, 4, 0.25});
  CHECK(step_rates(1000, 8e9, 0, seconds) == StepRates{500, 4, 0});
  CHECK(step_rates(1000, 8e9, 1, {}) == StepRates{});
}

TEST_CASE("a resumed run drops what it will do again, and a torn line") {
  FaultyFileSystem files;
  const auto write = [&](const std::string& text) {
    REQUIRE(write_file_atomically(files, "log", text).ok());
  };
  write("{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3, \"x\": NaN}\n{\"st");
  auto log = LineFile::open_at_step(files, "log", "step", 2).value();
  CHECK(read(files, "log") == "{\"step\": 1}\n{\"step\": 2}\n");
  CHECK(log.append("{\"step\": 3}").ok());
  CHECK(read(files, "log") == "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n");
  CHECK(LineFile::open_at_step(files, "log", "step", 3).ok());
  CHECK(read(files, "log") == "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n");
  CHECK(LineFile::open_at_step(files, "log", "step", 0).ok());
  CHECK(read(files, "log").empty());
  write("a\nb");
  CHECK(LineFile::open(files, "log").ok());
  CHECK(read(files, "log") == "a\n");
  write("torn");
  CHECK(LineFile::open(files, "log").ok());
  CHECK(read(files, "log").empty());
}

TEST_CASE("lines that found no room are written when there is some, each once and in order") {
  FaultyFileSystem files;
  auto log = LineFile::open(files, "log").value();
  CHECK(log.append("{\"step\": 1}").ok());
  files.set_space_bytes(15);
  CHECK(log.append("{\"step\": 2}").code() == Code::kResourceExhausted);
  CHECK(log.append("{\"step\": 3}").ok());  // that it waits was said
  CHECK(log.sync().code() == Code::kResourceExhausted);
  CHECK(read_steps(files, "log", DamagedLines::kSkip).value().empty());
  files.set_space_bytes(1000);
  SUBCASE("by the next line") { CHECK(log.append("{\"step\": 4}").ok()); }
  SUBCASE("at the end") {
    CHECK(log.sync().ok());
    // Nothing is left of the line that was cut short.
    CHECK(read(files, "log") == "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n");
    CHECK(log.append("{\"step\": 4}").ok());
  }
  CHECK(LineFile::open_at_step(files, "log", "step", 9).ok());
  CHECK(read(files, "log") == "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n{\"step\": 4}\n");
}

TEST_CASE("a file with a torn line is opened on a full disk, too") {
  FaultyFileSystem files;
  const std::string torn = "{\"step\": 1}\n{\"ste\n{\"step\": 2}\n{\"st";
  REQUIRE(write_file_atomically(files, "log", torn).ok());
  files.set_space_bytes(torn.size() + 3);
  // Lines of later steps must go: that needs room.
  CHECK(LineFile::open_at_step(files, "log", "step", 1).status().code() ==
        Code::kResourceExhausted);
  auto log = LineFile::open_at_step(files, "log", "step", 2).value();
  CHECK_FALSE(log.append("{\"step\": 3}").ok());
  files.set_space_bytes(1000);
  CHECK(log.sync().ok());
  CHECK(read(files, "log") == "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n");
}

TEST_CASE("what waits for room is bounded: the newest lines are kept") {
  FaultyFileSystem files;
  auto log = LineFile::open(files, "log").value();
  files.set_space_bytes(0);
  const std::string padding(LineFile::kUnwrittenBytesMax / 4, 'x');
  for (int step = 1; step <= 10; ++step) {
    static_cast<void>(log.append(fmt::format("{{\"step\": {}, \"x\": \"{}\"}}", step, padding)));
  }
  files.set_space_bytes(100 << 20);
  REQUIRE(log.sync().ok());
  CHECK(last_step_in(files, "log") == 0);  // lines as long as what is read of a file's end
  const std::string text = files.read("log", 100 << 20).value();
  CHECK(text.find("{\"step\": 10,") != std::string::npos);
  CHECK(text.find("{\"step\": 8,") != std::string::npos);
  CHECK(text.find("{\"step\": 1,") == std::string::npos);
  CHECK(text.size() <= LineFile::kUnwrittenBytesMax + 1);
}

TEST_CASE("of a long file's sound end, only that is read") {
  FaultyFileSystem files;
  std::string text = "what is this?\n";
  for (int step = 1; step <= 20000; ++step) text += fmt::format("{{\"step\": {}}}\n", step);
  REQUIRE(write_file_atomically(files, "log", text).ok());
  CHECK(last_step_in(files, "log") == 20000);
  CHECK(LineFile::open_at_step(files, "log", "step", 20000).ok());
  CHECK(read(files, "log") == text);
  // What must go is looked for everywhere, and so goes what is no line.
  CHECK(LineFile::open_at_step(files, "log", "step", 19999).ok());
  CHECK(last_step_in(files, "log") == 19999);
  CHECK(read(files, "log").starts_with("{\"step\": 1}\n"));
  REQUIRE(write_file_atomically(files, "log", std::string(100'000, 'x')).ok());
  CHECK(LineFile::open_at_step(files, "log", "step", 3).ok());
  CHECK(read(files, "log").empty());
}

TEST_CASE("lines that are no step's are refused, or left out") {
  FaultyFileSystem files;
  const std::string good = step_line({.step = 1, .loss = 2, .grad_norm = 1});
  const std::string later = step_line({.step = 3, .loss = 1, .grad_norm = 1});
  REQUIRE(write_file_atomically(files, "log",
                                good + "\n{\"step\": 2, \"lo\n{\"step\": 2}\n" + later + "\n")
              .ok());
  CHECK(read_steps(files, "log").status().code() == Code::kDataLoss);
  const auto steps = read_steps(files, "log", DamagedLines::kSkip).value();
  REQUIRE(steps.size() == 2);
  CHECK(steps[1].step == 3);
}

TEST_CASE("a rewrite that is interrupted leaves the old lines or the new ones") {
  const std::string before = "{\"step\": 1}\n{\"step\": 2}\n", after = "{\"step\": 1}\n";
  for (std::uint64_t n = 0;; ++n) {
    FaultyFileSystem files;
    REQUIRE(write_file_atomically(files, "log", before).ok());
    REQUIRE(files.sync_directory("").ok());
    files.crash_at_operation(n);
    const bool opened = LineFile::open_at_step(files, "log", "step", 1).ok();
    const bool crashed = files.fault_happened();
    files.revive(FaultyFileSystem::Survives::kSyncedOnly);
    const auto text = read(files, "log");
    CHECK((text == before || text == after));
    if (opened) CHECK(text == after);
    if (!crashed) break;
  }
}

TEST_CASE("trainer_log.jsonl has LLaMA-Factory's fields in its order") {
  TrainerLogEntry entry;
  entry.current_steps = 10;
  entry.total_steps = 30;
  entry.loss = 2.123456;
  entry.learning_rate = 1e-5;
  entry.epoch = 0.5;
  entry.elapsed_s = 61.5;
  entry.remaining_s = 123;
  CHECK(
      trainer_log_line(entry) ==
      R"({"current_steps": 10, "total_steps": 30, "loss": 2.1235, "lr": 1e-05, "epoch": 0.5, "percentage": 33.33, "elapsed_time": "0:01:01", "remaining_time": "0:02:03"})");
  entry.total_tokens = 10000;
  entry.eval_loss = 2.5;
  entry.loss.reset();
  CHECK(
      trainer_log_line(entry) ==
      R"({"current_steps": 10, "total_steps": 30, "eval_loss": 2.5, "lr": 1e-05, "epoch": 0.5, "percentage": 33.33, "elapsed_time": "0:01:01", "remaining_time": "0:02:03", "throughput": 162.6, "total_tokens": 10000})");
}

TEST_CASE("trainer_state.json as transformers writes it, and back") {
  TrainerState state;
  state.epoch = 0.5;
  state.global_step = 20;
  state.max_steps = 40;
  state.logging_steps = 10;
  state.save_steps = 20;
  state.num_train_epochs = 1;
  state.train_batch_size = 2;
  state.num_input_tokens_seen = 0;
  state.total_flos = 1.5e12;
  state.log_history = {train_log(0.25, 1.25, 3e-4, 2.12345678, 10),
                       train_log(0.5, 1.5, 2e-4, std::nan(""), 20)};
  const std::string text = trainer_state_text(state);
  CHECK(text == R"({
  "best_global_step": null,
  "best_metric": null,
  "best_model_checkpoint": null,
  "epoch": 0.5,
  "eval_steps": 500,
  "global_step": 20,
  "is_hyper_param_search": false,
  "is_local_process_zero": true,
  "is_world_process_zero": true,
  "log_history": [
    {
      "epoch": 0.25,
      "grad_norm": 1.25,
      "learning_rate": 0.0003,
      "loss": 2.1235,
      "step": 10
    },
    {
      "epoch": 0.5,
      "grad_norm": 1.5,
      "learning_rate": 0.0002,
      "loss": NaN,
      "step": 20
    }
  ],
  "logging_steps": 10,
  "max_steps": 40,
  "num_input_tokens_seen": 0,
  "num_train_epochs": 1,
  "save_steps": 20,
  "stateful_callbacks": {
    "TrainerControl": {
      "args": {
        "should_epoch_stop": false,
        "should_evaluate": false,
        "should_log": false,
        "should_save": false,
        "should_training_stop": false
      },
      "attributes": {}
    }
  },
  "total_flos": 1500000000000.0,
  "train_batch_size": 2,
  "trial_name": null,
  "trial_params": null
}
)");
  auto back = parse_trainer_state(text, "trainer_state.json").value();
  CHECK(trainer_state_text(back) == text);
  truncate_log_history(back, 10);
  CHECK(back.log_history.size() == 1);
  CHECK_FALSE(find_eval_log(back, 10));
  CHECK_FALSE(last_eval_step(back));
  back.log_history.push_back(eval_log(0.25, 3, 2, 8, 4, 10));
  back.log_history.push_back(eval_log(0.5, 2, 2, 8, 4, 20));
  CHECK(last_eval_step(back) == 20);
  CHECK(json::find_number(*find_eval_log(back, 10), "eval_loss") == 3);
  CHECK(json::find_number(*find_eval_log(back, 10), "eval_samples_per_second") == 4);
  CHECK_FALSE(find_eval_log(back, 15));
  back.early_stopping = EarlyStoppingState{3, 1};
  const std::string stopping = trainer_state_text(back);
  CHECK(stopping.find(R"(    "EarlyStoppingCallback": {
      "args": {
        "early_stopping_patience": 3,
        "early_stopping_threshold": 0.0
      },
      "attributes": {
        "early_stopping_patience_counter": 1
      }
    },
    "TrainerControl": {)") != std::string::npos);
  CHECK(parse_trainer_state(stopping, "x").value().early_stopping == EarlyStoppingState{3, 1});
  CHECK(!parse_trainer_state("{}", "x").ok());
  CHECK(!parse_trainer_state("[", "x").ok());
}

TEST_CASE("results: indent 4, rounded, all_results over what is there") {
  FaultyFileSystem files;
  REQUIRE(files.create_directories("out").ok());
  const TrainResults results{1.0, 2e9, 2.345678, 12.345678, 50, 100, 50};
  CHECK(save_metrics(files, "out", "train", train_metrics(results)).ok());
  const std::string text = R"({
    "epoch": 1.0,
    "total_flos": 2000000000.0,
    "train_loss": 2.345678,
    "train_runtime": 12.3457,
    "train_samples_per_second": 8.1,
    "train_steps_per_second": 4.05
})";
  CHECK(read(files, "out/train_results.json") == text);
  CHECK(read(files, "out/all_results.json") == text);
  CHECK(save_metrics(files, "out", "eval", {{"eval_loss", 2.0}, {"epoch", 2.0}}).ok());
  const auto all = parse_python_json(read(files, "out/all_results.json"), "x").value();
  CHECK(*json::find_number(all, "eval_loss") == 2);
  CHECK(*json::find_number(all, "epoch") == 2);
  CHECK(*json::find_number(all, "train_loss") == 2.345678);
  CHECK(json::find_integer(final_log(results), "step") == 50);
}

}  // namespace
}  // namespace troupe::train
