// `troupe train` as a user runs it: what it writes, that it repeats itself, stages, resuming.

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/support/runs/tiny_run.h"

namespace troupe::tests {
namespace {

// One set of files for the test cases of this program, with the runs that several compare with.
struct Shared {
  TinyRun tiny;
  CommandResult oracle;
  Shared() : oracle(tiny.must_train("oracle", {{"plot_loss", "true"}})) {}
};
Shared& shared() {
  static Shared shared;
  return shared;
}

json::Value json_file(const std::string& path) {
  auto value = json::parse(contents(path), path);
  REQUIRE_MESSAGE(value.ok(), value.status().to_string());
  return std::move(value).value();
}

TEST_CASE("a run writes every file of its outputs") {
  const std::string out = shared().tiny.file("oracle");
  for (const char* name :
       {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "trainer_log.jsonl", "trainer_state.json", "train_results.json", "all_results.json",
        "training_loss.png", "steps.jsonl", "events.jsonl", "checkpoint-3/model.safetensors",
        "checkpoint-6/optimizer-00001-of-00002.safetensors", "checkpoint-8/trainer_state.json"}) {
    CAPTURE(name);
    CHECK(exists(out + "/" + name));
  }
  const auto steps = steps_of(out);
  REQUIRE(steps.size() == 8);
  CHECK(steps.back().loss < steps.front().loss);
  CHECK(event_names(out).empty());

  const auto log = json_lines(out + "/trainer_log.jsonl");
  REQUIRE(log.size() >= 8);
  CHECK(json::find_number(log[7], "current_steps") == 8);
  CHECK(json::find_number(log[7], "total_steps") == 8);
  CHECK(json::find_number(log[7], "percentage") == 100);
  for (const char* key : {"loss", "lr", "epoch"}) CHECK(json::find_number(log[0], key));
  for (const char* key : {"elapsed_time", "remaining_time"}) CHECK(json::find_string(log[0], key));

  const auto state = json_file(out + "/trainer_state.json");
  CHECK(json::find_number(state, "global_step") == 8);
  CHECK(state.at("log_history").as_array().size() == 9);  // eight steps and the summary
  const auto results = json_file(out + "/train_results.json");
  for (const char* key : {"epoch", "total_flos", "train_loss", "train_runtime",
                          "train_samples_per_second", "train_steps_per_second"}) {
    CAPTURE(key);
    CHECK(json::find_number(results, key));
  }
  CHECK(contents(out + "/training_loss.png").substr(1, 3) == "PNG");
}

TEST_CASE("weights are in the common form: metadata, sorted names, the last checkpoint's bytes") {
  const std::string out = shared().tiny.file("oracle");
  const std::string file = contents(out + "/model.safetensors");
  REQUIRE(file.size() > 8);
  const auto length =
      static_cast<unsigned char>(file[0]) + 256u * static_cast<unsigned char>(file[1]);
  const auto header = json::parse(file.substr(8, length), "model.safetensors").value().as_object();
  REQUIRE(header.contains("__metadata__"));
  CHECK(header.at("__metadata__") == json::Object{{"format", "pt"}});
  std::string last;
  for (const auto& entry : header) {
    const std::string name(entry.key());
    if (name == "__metadata__") continue;
    CHECK(last < name);
    last = name;
  }
  CHECK(last.rfind("model.", 0) == 0);
  CHECK((file == contents(out + "/checkpoint-8/model.safetensors")));
}

TEST_CASE("output on a pipe is plain lines, one for each logged step, and stdout is empty") {
  const auto& result = shared().oracle;
  CHECK(result.out.empty());
  CHECK(result.err.find_first_of("\r\x1b") == std::string::npos);
  CHECK(result.err.back() == '\n');
  for (int step = 1; step <= 8; ++step) {
    CHECK(result.err.find("step " + std::to_string(step) + "/8 ") != std::string::npos);
  }
  CHECK(result.err.find(shared().tiny.file("oracle")) != std::string::npos);
}

TEST_CASE("the best model's checkpoint that failed is not named, and no line is lost") {
  const auto& tiny = shared().tiny;
  const Settings settings = {{"val_size", "0.2"}, {"eval_strategy", "steps"},
                             {"eval_steps", "4"}, {"save_steps", "4"},
                             {"packing", "true"}, {"load_best_model_at_end", "true"}};
  const auto result = tiny.must_train("failed", settings,
                                      {"--chaos",
                                       "fail_write@file=checkpoint-8,rank=any,times=1;"
                                       "disk_full@file=steps.jsonl,hit=2,for_ms=3"});
  CHECK_MESSAGE(result.err.find("checkpoint-8 was not written") != std::string::npos, result.err);
  CHECK(result.err.find("; 1 checkpoint could not be written\n") != std::string::npos);
  CHECK_FALSE(exists(tiny.file("failed/checkpoint-8")));
  const auto state = json_file(tiny.file("failed/trainer_state.json"));
  CHECK(json::find_string(state, "best_model_checkpoint") == tiny.file("failed/checkpoint-4"));
  CHECK((contents(tiny.file("failed/model.safetensors")) ==
         contents(tiny.file("failed/checkpoint-4/model.safetensors"))));
  const auto steps = steps_of(tiny.file("failed"));
  REQUIRE(steps.size() == 8);
  for (std::size_t i = 0; i < 8; ++i) CHECK(steps[i].step == static_cast<std::int64_t>(i) + 1);
}

TEST_CASE("--json prints the summary, and nothing else on stdout") {
  const auto& tiny = shared().tiny;
  const auto result = tiny.must_train("json", {{"max_steps", "2"}}, {"--json"});
  const auto summary = json::parse(result.out, "stdout");
  REQUIRE_MESSAGE(summary.ok(), result.out);
  CHECK(json::find_number(*summary, "steps") == 2);
  CHECK(json::find_number(*summary, "failures") == 0);
  CHECK(json::find_string(*summary, "output_dir") == tiny.file("json"));
}

TEST_CASE("--explain tells what becomes of every key and starts nothing") {
  const auto& tiny = shared().tiny;
  const auto table = tiny.train("explained", {}, {"--explain"});
  CHECK(table.exit_code == 0);
  CHECK(table.out.find("learning_rate") != std::string::npos);
  CHECK(table.out.find("troupe.workers") != std::string::npos);
  const auto rows = tiny.train("explained", {}, {"--explain", "--json"});
  CHECK(rows.exit_code == 0);
  CHECK(json::parse(rows.out, "stdout").ok());
  CHECK_FALSE(exists(tiny.file("explained")));
}

TEST_CASE("a YAML file with overrides on the command line is the same run") {
  const auto& tiny = shared().tiny;
  std::string yaml =
      "### a comment\ntroupe:\n  workers: 2\n  threads_per_worker: 1\n"
      "  train_tokenizer: 290\nmax_steps: 4\n";
  for (const auto& argument : tiny.train_arguments("yaml")) {
    const auto equals = argument.find('=');
    const std::string key = argument.substr(0, equals);
    if (equals == std::string::npos || key.rfind("troupe.", 0) == 0 || key == "max_steps") continue;
    yaml += key + ": " + argument.substr(equals + 1) + "\n";
  }
  write(tiny.file("run.yaml"), yaml);
  const auto result =
      run_command({troupe_program(), "train", "run.yaml", "max_steps=8"}, tiny.options());
  REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  check_same_result(tiny.file("yaml"), tiny.file("oracle"));
}

TEST_CASE("the same run twice, and with two threads for each trainer, gives equal bits") {
  const auto& tiny = shared().tiny;
  tiny.must_train("again");
  check_same_result(tiny.file("again"), tiny.file("oracle"));
  tiny.must_train("threads", {{"troupe.threads_per_worker", "2"}});
  check_same_result(tiny.file("threads"), tiny.file("oracle"));
}

TEST_CASE("world sizes 1, 2 and 4 with the same global batch give the same losses") {
  const auto& tiny = shared().tiny;
  const auto world = [&](const char* output, const char* workers, const char* batch,
                         const char* accumulation) {
    tiny.must_train(output, {{"troupe.workers", workers},
                             {"per_device_train_batch_size", batch},
                             {"gradient_accumulation_steps", accumulation}});
  };
  world("w1", "1", "4", "1");
  world("w4", "4", "1", "1");
  world("w1a", "1", "1", "4");
  world("w2a", "2", "1", "2");
  for (const char* output : {"w1", "w4", "w1a", "w2a"}) {
    CAPTURE(output);
    check_same_losses(tiny.file(output), tiny.file("oracle"));
  }
}

TEST_CASE("NNODES and NPROC_PER_NODE, and ray_num_workers, set the world size") {
  const auto& tiny = shared().tiny;
  const Settings none = {{"troupe.workers", ""}, {"max_steps", "1"}};
  auto result = tiny.must_train("nproc", none, {}, {{"NPROC_PER_NODE", "2"}});
  CHECK(result.err.find("2 trainers (") != std::string::npos);
  result = tiny.must_train("alone", none);
  CHECK(result.err.find("1 trainer (") != std::string::npos);
}

TEST_CASE("supervised fine-tuning goes on from a trained model, with a template") {
  const auto& tiny = shared().tiny;
  const Settings settings = {
      {"stage", "sft"},           {"model_name_or_path", tiny.file("oracle")},
      {"train_from_scratch", ""}, {"troupe.train_tokenizer", ""},
      {"dataset", "questions"},   {"template", "alpaca"},
      {"cutoff_len", "96"}};
  tiny.must_train("sft", settings);
  const auto steps = steps_of(tiny.file("sft"));
  REQUIRE(steps.size() == 8);
  CHECK(steps.back().loss < steps.front().loss);
  tiny.must_train("sft-killed", settings, {"--chaos", "kill@step=5,rank=0"});
  check_same_result(tiny.file("sft-killed"), tiny.file("sft"));
}

TEST_CASE("a chosen checkpoint is gone on from, to the same end") {
  const auto& tiny = shared().tiny;
  const auto result =
      tiny.must_train("resumed", {{"resume_from_checkpoint", tiny.file("oracle/checkpoint-3")}});
  CHECK(result.err.find("checkpoint-3 (step 3)") != std::string::npos);
  CHECK((contents(tiny.file("resumed/model.safetensors")) ==
         contents(tiny.file("oracle/model.safetensors"))));
  const auto steps = steps_of(tiny.file("resumed"));
  REQUIRE(steps.size() == 5);
  CHECK(steps.front().step == 4);
  CHECK(steps.back().loss == steps_of(tiny.file("oracle")).back().loss);
}

TEST_CASE("an interrupted run goes on by itself from its newest checkpoint that is good") {
  const auto& tiny = shared().tiny;
  const Settings on = {{"overwrite_output_dir", "false"}};
  tiny.must_train("auto");
  // As after a power cut: the newest checkpoint is damaged, the results are not there.
  const std::string weights = tiny.file("auto/checkpoint-8/model.safetensors");
  std::string bytes = contents(weights);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
  write(weights, bytes);
  std::filesystem::remove(tiny.file("auto/model.safetensors"));
  const auto result = tiny.must_train("auto", on);
  CHECK(result.err.find("checkpoint-8 is not used") != std::string::npos);
  CHECK(result.err.find("checkpoint-6 (step 6)") != std::string::npos);
  check_same_result(tiny.file("auto"), tiny.file("oracle"));
}

TEST_CASE("save_total_limit keeps the newest checkpoints") {
  const auto& tiny = shared().tiny;
  tiny.must_train("limited", {{"save_total_limit", "1"}});
  CHECK_FALSE(exists(tiny.file("limited/checkpoint-3")));
  CHECK_FALSE(exists(tiny.file("limited/checkpoint-6")));
  CHECK(exists(tiny.file("limited/checkpoint-8")));
}

TEST_CASE("the trained model generates: the same text from the same seed") {
  const auto& tiny = shared().tiny;
  const auto generate = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {troupe_program(),    "generate", "--model",
                                          tiny.file("oracle"), "--prompt", "the old bridge",
                                          "--max-tokens",      "12"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto result = run_command(arguments, tiny.options());
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    CHECK(result.out.rfind("the old bridge", 0) == 0);
    return result.out;
  };
  CHECK(generate({}) == generate({"--threads", "2"}));
  CHECK(generate({"--temperature", "1", "--seed", "7"}) ==
        generate({"--temperature", "1", "--seed", "7"}));
}

TEST_CASE("a text that ends with the model's context says so, any other does not") {
  const auto& tiny = shared().tiny;
  const auto notice = [&](const char* tokens) {
    const auto result =
        run_command({troupe_program(), "generate", "--model", tiny.file("oracle"), "--prompt",
                     "the", "--max-tokens", tokens, "--temperature", "1"},
                    tiny.options());
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    return result.err;
  };
  CHECK(notice("3").empty());
  CHECK(notice("100000").find("the text ends where the model's context does") != std::string::npos);
}

TEST_CASE("an epoch is trained to its end by another number of workers, and no more than once") {
  const auto& tiny = shared().tiny;
  const auto settings = [](const char* workers, const char* epochs) {
    return Settings{{"max_steps", ""},
                    {"num_train_epochs", epochs},
                    {"troupe.workers", workers},
                    {"per_device_train_batch_size", "1"},
                    {"gradient_accumulation_steps", "1"},
                    {"save_steps", "5"},
                    {"overwrite_output_dir", "false"}};
  };
  tiny.must_train("resized", settings("1", "1"));
  const std::string out = tiny.file("resized");
  const auto all = steps_of(out);
  std::int64_t tokens = 0;
  for (const auto& step : all) tokens += step.tokens;
  const auto samples = static_cast<std::int64_t>(all.size());
  REQUIRE(samples > 12);
  // As after a kill: the newest checkpoints are not there.
  for (std::int64_t step = 6; step <= samples; ++step)
    std::filesystem::remove_all(fmt::format("{}/checkpoint-{}", out, step));
  auto result = tiny.must_train("resized", settings("4", "1"));
  CHECK_MESSAGE(result.err.find("the run ends after step") != std::string::npos, result.err);
  const auto steps = steps_of(out);
  CHECK(std::ssize(steps) == 5 + (samples - 5 + 3) / 4);
  std::int64_t again = 0;
  for (const auto& step : steps) again += step.tokens;
  CHECK(again == tokens);
  // Finished: the same command trains nothing, and its results stay.
  const std::string results = contents(out + "/train_results.json");
  result = tiny.must_train("resized", settings("4", "1"));
  CHECK(contents(out + "/train_results.json") == results);
  // Other samples.
  Settings other = settings("4", "2");
  other["seed"] = "43";
  result = tiny.train("resized", other);
  CHECK(result.exit_code != 0);
  CHECK_MESSAGE(result.err.find("data_seed (else seed) was 42 and is 43") != std::string::npos,
                result.err);
  other["troupe.allow_data_change"] = "true";
  result = tiny.must_train("resized", other);
  CHECK(result.err.find("warning: going on with other samples") != std::string::npos);
}

}  // namespace
}  // namespace troupe::tests
