#include "tools/commands/tiny_training.h"

#include <iterator>

#include "runtime/base/json.h"
#include "runtime/base/random.h"

namespace troupe::tools {
namespace {

constexpr const char* kTinyModel = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
  "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 304, "max_position_embeddings": 96,
  "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "initializer_range": 0.02,
  "bos_token_id": 0, "eos_token_id": 0})";

constexpr const char* kTinyDatasets =
    R"({"tiny": {"file_name": "tiny.txt", "columns": {"prompt": "text"}},
        "pairs": {"file_name": "pairs.jsonl", "ranking": true,
                  "columns": {"prompt": "ask", "chosen": "good", "rejected": "bad"}}})";

constexpr const char* kTinyWords[] = {"river", "stone",  "walks", "under",  "the",
                                      "old",   "bridge", "and",   "nobody", "sees",
                                      "a",     "green",  "lamp",  "burning"};

}  // namespace

Status write_tiny_training(FileSystem& files, const std::string& folder) {
  for (const char* name : {"model", "data"}) {
    TROUPE_RETURN_IF_ERROR(files.create_directories(join_path(folder, name)));
  }
  SeededRandom random(11);
  const auto words = [&](int count) {
    std::string text;
    for (int word = 0; word < count; ++word)
      text += (word > 0 ? " " : "") + std::string(kTinyWords[random.below(std::size(kTinyWords))]);
    return text;
  };
  std::string text, pairs;
  for (int line = 0; line < 120; ++line) text += words(14) + "\n";
  for (int line = 0; line < 40; ++line)
    pairs +=
        json::write(json::Object{{"ask", words(2)}, {"good", words(4)}, {"bad", words(3)}}) + "\n";
  TROUPE_RETURN_IF_ERROR(
      write_file_atomically(files, join_path(folder, "model/config.json"), kTinyModel));
  TROUPE_RETURN_IF_ERROR(
      write_file_atomically(files, join_path(folder, "data/dataset_info.json"), kTinyDatasets));
  TROUPE_RETURN_IF_ERROR(
      write_file_atomically(files, join_path(folder, "data/pairs.jsonl"), pairs));
  return write_file_atomically(files, join_path(folder, "data/tiny.txt"), text);
}

std::vector<std::string> tiny_training_arguments(const std::string& folder,
                                                 const std::string& output_dir,
                                                 const std::map<std::string, std::string>& more) {
  std::map<std::string, std::string> settings = {{"model_name_or_path", join_path(folder, "model")},
                                                 {"train_from_scratch", "true"},
                                                 {"stage", "pt"},
                                                 {"do_train", "true"},
                                                 {"finetuning_type", "full"},
                                                 {"dataset", "tiny"},
                                                 {"dataset_dir", join_path(folder, "data")},
                                                 {"cutoff_len", "24"},
                                                 {"output_dir", output_dir},
                                                 {"overwrite_output_dir", "true"},
                                                 {"logging_steps", "1"},
                                                 {"save_steps", "2"},
                                                 {"val_size", "4"},
                                                 {"eval_strategy", "steps"},
                                                 {"eval_steps", "2"},
                                                 {"per_device_train_batch_size", "1"},
                                                 {"per_device_eval_batch_size", "1"},
                                                 {"learning_rate", "1.0e-2"},
                                                 {"max_steps", "3"},
                                                 {"troupe.workers", "2"},
                                                 {"troupe.threads_per_worker", "1"},
                                                 {"troupe.train_tokenizer", "290"}};
  for (const auto& [key, value] : more) settings[key] = value;
  std::vector<std::string> arguments;
  for (const auto& [key, value] : settings)
    if (!value.empty()) arguments.push_back(key + "=" + value);
  return arguments;
}

}  // namespace troupe::tools
