// tokenizer encode and decode, chat, as a user runs them.

#include "runtime/base/file_system.h"
#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"

namespace troupe::tests {
namespace {

void put(const TroupeHome& home, const std::string& name, const std::string& text) {
  PosixFileSystem files;
  REQUIRE(write_file_atomically(files, home.file(name), text).ok());
}

TEST_CASE("tokenizer encode and decode: files, standard input, JSON") {
  TroupeHome home;
  PosixFileSystem files;
  const std::string golden = source_dir() + "/tests/golden/tokenizer/";
  put(home, "tokenizer.model", files.read(golden + "llama.model", 1 << 20).value());
  put(home, "tokenizer_config.json", files.read(golden + "llama.config.json", 1 << 20).value());
  put(home, "one,two.txt", "Hello <x>");
  put(home, "empty.txt", "");
  const auto run = [&](const std::string& action, std::vector<std::string> more,
                       const std::string& input = "") {
    home.more().input = input;
    std::vector<std::string> words = {"tokenizer", action, "--tokenizer", home.path()};
    words.insert(words.end(), more.begin(), more.end());
    return home.run(words);
  };
  const auto encoded = run("encode", {home.file("one,two.txt"), home.file("empty.txt")});
  REQUIRE_MESSAGE(encoded.exit_code == 0, encoded.err);
  CHECK(encoded.out.ends_with(" 430\n\n"));
  CHECK(run("encode", {}, "Hello <x>").out + "\n" == encoded.out);
  CHECK(run("encode", {"--special"}, "Hello <x>").out.starts_with("1 "));
  const auto json = run("encode", {"--json", home.file("one,two.txt")}).out;
  CHECK(contains(json, "\"<x>\"]"));
  CHECK(contains(json, "\"file\":\"" + home.file("one,two.txt") + "\""));
  CHECK(run("decode", {}, encoded.out).out == "Hello \n\n");
  CHECK(run("decode", {"--special"}, encoded.out).out == "Hello <x>\n\n");
  CHECK(contains(run("decode", {"--json"}, "1,430").out, "\"text\":\"\""));
  const auto wrong = run("decode", {}, "1 2\n3 x");
  CHECK(wrong.exit_code == 2);
  CHECK(contains(wrong.err, "standard input:2: 'x' is no id of this tokenizer (0 to 431)"));
  CHECK(run("decode", {}, "432").exit_code == 2);
  CHECK(run("guess", {}).exit_code == 2);
  CHECK(contains(home.run({"tokenizer", "encode"}).err, "--tokenizer DIR"));
}

TEST_CASE("chat answers the lines of a script, with what was said before") {
  const auto model = test_data("stories260K/hf");
  if (!model) return;
  TroupeHome home;
  const auto chat = [&](const std::string& script, std::vector<std::string> more = {}) {
    home.more().input = script;
    std::vector<std::string> words = {"chat", "--model",   *model, "--max-tokens",
                                      "12",   "--threads", "1"};
    if (more.empty()) more = {"--template", "empty"};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = home.run(words);
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    return result.out;
  };
  const std::string first = chat("Once upon a time\n"), second = chat("The dog\n");
  CHECK(first.size() > 5);
  CHECK(first.ends_with("\n"));
  // A question behind an answer is another prompt; /clear makes it the same again.
  const std::string both = chat("Once upon a time\n\nThe dog\n");
  CHECK(both.starts_with(first));
  CHECK(both != first + second);
  CHECK(chat("Once upon a time\n/clear\nThe dog\n/exit\nOnce\n") == first + second);
  const std::string system = chat("The dog\n", {"--template", "default", "--system", "Lily runs."});
  CHECK(system != chat("The dog\n", {"--template", "default"}));
  // A file of LLaMA-Factory's; without do_sample answers are the likeliest, as by flags.
  const auto file = home.file("inference.yaml");
  PosixFileSystem files;
  REQUIRE(write_file_atomically(files, file,
                                "model_name_or_path: " + *model +
                                    "\ntemplate: empty\ninfer_backend: huggingface\n"
                                    "do_sample: false\nmax_new_tokens: 12\n")
              .ok());
  home.more().input = "Once upon a time\n";
  CHECK(home.run({"chat", file}).out == first);
  CHECK(home.run({"chat", file, "max_new_tokens=1"}).out.size() < first.size());
  CHECK(contains(home.run({"chat", file, "infer_backend=vllm"}).err, "infer_backend=vllm"));
  CHECK(contains(home.run({"chat", file, "--model", *model}).err, "both name a model"));
  // A script passes over what stands behind a failure, until it begins anew.
  std::string long_text;
  for (int i = 0; i < 600; ++i) long_text += " cat";
  CHECK(chat(long_text + "\nOnce\n/clear\nThe dog\n") == second);
  home.more().input = long_text + "\nThe dog\n";
  const auto full = home.run({"chat", "--model", *model});
  CHECK(full.exit_code == 2);
  CHECK(full.out.empty());
  CHECK(contains(full.err, "the model's context is 512"));
  CHECK(contains(full.err, "without marks; --template NAME takes one"));
  home.more().input = "";
  const auto wrong = home.run({"chat", "--model", *model, "--template", "none"});
  CHECK(wrong.exit_code != 0);
  CHECK(contains(wrong.err, "Template none does not exist."));
  // A folder alone is the model's.
  home.more().input = "Once upon a time\n";
  const auto by_folder = home.run({"chat", *model, "--template", "empty", "--max-tokens", "12"});
  CHECK(by_folder.out == first);
  const auto adapter = home.run({"chat", *model, "--adapter", home.file("nowhere")});
  CHECK(contains(adapter.err, "adapter_config.json' at '" + home.file("nowhere")));
}

TEST_CASE(
    "chat with what a LoRA training wrote: its model, and the template that it was trained with") {
  const auto model = test_data("stories260K/hf");
  if (!model) return;
  TroupeHome home;
  put(home, "dataset_info.json", R"({"a": {"file_name": "a.json"}})");
  put(home, "a.json", R"([{"instruction": "Who is there?", "output": "A cat."}])");
  put(home, "x.yaml",
      "model_name_or_path: " + *model + "\nstage: sft\ndo_train: true\n" +
          "finetuning_type: lora\nlora_target: all\ntemplate: alpaca\ndataset: a\n" +
          "dataset_dir: " + home.path() + "\noutput_dir: " + home.file("out") +
          "\nmax_steps: 1\nlearning_rate: 1.0e-3\nsave_strategy: \"no\"\n");
  const auto trained = home.run({"train", home.file("x.yaml")});
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.err);
  home.more().input = "Who is there?\n";
  const auto chat = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "chat");
    words.insert(words.end(), {"--max-tokens", "12", "--threads", "1"});
    const auto result = home.run(words);
    CHECK_MESSAGE(result.exit_code == 0, result.err);
    return result;
  };
  const auto alone = chat({"--model", home.file("out")});
  CHECK(contains(alone.err, "is an adapter: over " + *model));
  CHECK(contains(alone.err, "by template alpaca, as " + home.file("out") +
                                "/chat_template.jinja says; --template NAME takes another"));
  CHECK(alone.out ==
        chat({"--model", *model, "--adapter", home.file("out"), "--template", "alpaca"}).out);
  CHECK(alone.out != chat({"--model", home.file("out"), "--template", "empty"}).out);
  const auto by_file = home.run({"chat", home.file("x.yaml"), "max_new_tokens=2"});
  CHECK(contains(by_file.err, "notice: the adapter in " + home.file("out") + " is not used"));
  const auto exported =
      home.run({"export", home.file("x.yaml"), "export_dir=" + home.file("base")});
  CHECK(contains(exported.err, "notice: the adapter in " + home.file("out") + " is not used"));
}

TEST_CASE("data marks what is trained on, where texts begin and end with bytes") {
  const auto model = test_data("stories260K/hf");
  if (!model) return;
  TroupeHome home;
  put(home, "dataset_info.json",
      R"({"a": {"file_name": "a.json", "columns": {"prompt": "instruction",
          "response": "output", "history": "history"}}})");
  put(home, "a.json",
      R"([{"instruction": "Who?", "output": "Me.", "history": [["Cat?", "Dog."]]}])");
  put(home, "x.yaml",
      "model_name_or_path: " + *model + "\nstage: sft\ndo_train: true\n" +
          "template: alpaca\ndataset: a\ndataset_dir: " + home.path() +
          "\noutput_dir: " + home.file("out") + "\n");
  const auto shown = home.run({"data", home.file("x.yaml")});
  CHECK_MESSAGE(contains(shown.out, "### Response:\n⟦ Dog.</s> \n\n⟧ ### Instruction:"), shown.out);
}

}  // namespace
}  // namespace troupe::tests
