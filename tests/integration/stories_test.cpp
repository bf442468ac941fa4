// A published model through the real program: full fine-tuning and generation.

#include <doctest/doctest.h>

#include <filesystem>
#include <optional>

#include "tests/support/runs/tiny_run.h"

namespace troupe::tests {
namespace {

// Absolute: the programs run in a folder of the test.
std::optional<std::string> model_folder() {
  const auto folder = test_data("stories260K/hf");
  if (!folder) return std::nullopt;
  return std::filesystem::absolute(*folder).string();
}

Settings fine_tuning(const std::string& model) {
  return {{"model_name_or_path", model},  {"train_from_scratch", ""},
          {"troupe.train_tokenizer", ""}, {"cutoff_len", "64"},
          {"learning_rate", "5.0e-4"},    {"max_steps", "3"}};
}

TEST_CASE("stories260K: a few steps of full fine-tuning, losses equal at world sizes 1 and 2") {
  const auto model = model_folder();
  if (!model) return;
  const TinyRun tiny;
  Settings settings = fine_tuning(*model);
  tiny.must_train("w2", settings);
  settings["troupe.workers"] = "1";
  settings["per_device_train_batch_size"] = "4";
  tiny.must_train("w1", settings);
  check_same_losses(tiny.file("w1"), tiny.file("w2"));
  const auto steps = steps_of(tiny.file("w2"));
  REQUIRE(steps.size() == 3);
  CHECK(steps.back().loss < steps.front().loss);
  // It remains a model that this program opens.
  const auto result = run_command({troupe_program(), "generate", "--model", tiny.file("w2"),
                                   "--prompt", "Once", "--max-tokens", "3"},
                                  tiny.options());
  CHECK_MESSAGE(result.exit_code == 0, result.err);
}

TEST_CASE("stories260K: a killed fine-tuning ends as an undisturbed one") {
  const auto model = model_folder();
  if (!model) return;
  const TinyRun tiny;
  tiny.must_train("oracle", fine_tuning(*model));
  tiny.must_train("killed", fine_tuning(*model), {"--chaos", "kill@step=2,rank=1,phase=backward"});
  check_same_result(tiny.file("killed"), tiny.file("oracle"));
}

TEST_CASE("stories260K: the greedy text is the published one") {
  const auto model = model_folder();
  if (!model) return;
  const TinyRun tiny;
  const auto golden = json::parse(contents(*model + "/golden.json"), "golden.json").value();
  const auto text = json::find_string(golden, "greedy_text").value();
  const auto generate = [&](const std::string& prompt, const std::string& threads) {
    const auto result = run_command({troupe_program(), "generate", "--model", *model, "--prompt",
                                     prompt, "--max-tokens", "64", "--threads", threads},
                                    tiny.options());
    REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    return result.out.substr(0, result.out.size() - 1);  // the newline at the end
  };
  for (const char* prompt : {"", "Once upon a time, there was"}) {
    const std::string generated = generate(prompt, "1");
    CHECK(generated.size() > 100);
    CHECK(generated == text.substr(0, generated.size()));
    CHECK(generated == generate(prompt, "2"));
  }
}

}  // namespace
}  // namespace troupe::tests
