// `troupe train` with do_predict: files and scores, behind a training and alone, and with a process
// killed.

#include <doctest/doctest.h>
#include <signal.h>

#include <set>

#include "runtime/base/json.h"
#include "tests/support/runs/tiny_run.h"
#include "tests/support/text.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

const Settings kPrediction = {{"do_predict", "true"},
                              {"predict_with_generate", "true"},
                              {"eval_dataset", "questions"},
                              {"template", "default"},
                              {"max_new_tokens", "24"},
                              {"per_device_eval_batch_size", "3"},
                              {"max_samples", "20"},
                              {"stage", "sft"},
                              {"dataset", "questions"},
                              {"cutoff_len", "64"},
                              {"max_steps", "2"},
                              {"save_strategy", "no"}};

Settings with(Settings settings, const Settings& changes) {
  for (const auto& [key, value] : changes) settings[key] = value;
  return settings;
}

// Of a run that is alone: the model of `trained`, nothing of a training.
Settings alone(const TinyRun& run, const std::string& trained) {
  return with(kPrediction, {{"model_name_or_path", run.file(trained)},
                            {"do_train", ""},
                            {"dataset", ""},
                            {"train_from_scratch", ""},
                            {"troupe.train_tokenizer", ""},
                            {"max_steps", ""},
                            {"save_steps", ""},
                            {"save_strategy", ""}});
}

std::string predictions(const TinyRun& run, const std::string& output) {
  return contents(run.file(output + "/generated_predictions.jsonl"));
}

json::Value results(const TinyRun& run, const std::string& name) {
  return json::parse(contents(run.file(name)), name).value();
}

void check_same_scores(const json::Value& a, const json::Value& b) {
  for (const char* name : {"bleu-4", "rouge-1", "rouge-2", "rouge-l"}) {
    const auto key = std::string("predict_") + name;
    REQUIRE(json::find_number(a, key));
    CHECK(json::find_number(a, key) == json::find_number(b, key));
  }
}

TEST_CASE("predictions: files and scores, behind a training and alone, whoever dies") {
  const TinyRun run;
  const auto trained = run.must_train("trained", kPrediction);
  CHECK(contains(trained.err, "predicted 20 rows in"));
  const std::string expected = predictions(run, "trained");
  const auto rows = json_lines(run.file("trained/generated_predictions.jsonl"));
  REQUIRE(rows.size() == 20);
  for (const auto& row : rows) {
    CHECK(contains(json::find_string(row, "prompt").value(), "Human: "));
    CHECK_FALSE(contains(json::find_string(row, "label").value(), "<|"));
    CHECK(json::find_string(row, "predict"));
  }
  const auto scores = results(run, "trained/predict_results.json");
  CHECK(json::find_number(scores, "predict_runtime").value() > 0);
  CHECK(json::find_number(scores, "predict_steps_per_second").value() > 0);
  const auto all = results(run, "trained/all_results.json");
  check_same_scores(all, scores);
  CHECK(json::find_number(all, "train_loss"));

  // By one process.
  run.must_train("alone", with(alone(run, "trained"), {{"troupe.workers", "1"}}));
  CHECK(predictions(run, "alone") == expected);
  check_same_scores(results(run, "alone/predict_results.json"), scores);
  CHECK_FALSE(exists(run.file("alone/model.safetensors")));

  // The first two processes that come are killed.
  BackgroundCommand command(run.train_arguments("killed", alone(run, "trained")), run.options());
  REQUIRE(command.wait_for_output("predicting 20 rows", 30s));
  const std::string id = run_id(command.output());
  std::set<pid_t> killed;
  for (const auto until = std::chrono::steady_clock::now() + 20s;
       killed.size() < 2 && std::chrono::steady_clock::now() < until;) {
    for (const pid_t pid : processes_with("host --actor PredictorActor --run " + id))
      if (killed.size() < 2 && killed.insert(pid).second) ::kill(pid, SIGKILL);
  }
  CHECK(killed.size() == 2);
  CHECK(command.wait(60s) == 0);
  CHECK(predictions(run, "killed") == expected);

  // By an adapter, the likeliest tokens, of rows without answers.
  write(run.file("data/dataset_info.json"),
        R"({"questions": {"file_name": "questions.json"},
            "open": {"file_name": "open.jsonl", "columns": {"prompt": "q"}}})");
  write(run.file("data/open.jsonl"), "{\"q\": \"the old bridge\"}\n{\"q\": \"a green lamp\"}\n");
  const Settings open =
      with(alone(run, "trained"),
           {{"finetuning_type", "lora"}, {"eval_dataset", "open"}, {"do_sample", "false"}});
  run.must_train("adapter", with(open, {{"do_train", "true"},
                                        {"dataset", "questions"},
                                        {"save_strategy", "no"},
                                        {"max_steps", "2"}}));
  const auto answers = json_lines(run.file("adapter/generated_predictions.jsonl"));
  REQUIRE(answers.size() == 2);
  CHECK(json::find_string(answers[0], "label") == "\n");  // what the template has behind answers
  const Settings by_adapter = with(open, {{"adapter_name_or_path", run.file("adapter")}});
  run.must_train("by_adapter", by_adapter);
  CHECK(predictions(run, "by_adapter") == predictions(run, "adapter"));

  const auto refused = [&](const Settings& changes) {
    const auto result = run.train("refused", with(by_adapter, changes));
    CHECK(result.exit_code != 0);
    return result.err;
  };
  CHECK(contains(refused({{"eval_dataset", "nothing"}}), "Undefined dataset nothing"));
  CHECK(contains(refused({{"adapter_name_or_path", run.file("nowhere")}}), "nowhere"));
  CHECK(contains(refused({{"template", "nothing"}}), "Template nothing does not exist."));
}

}  // namespace
}  // namespace troupe::tests
