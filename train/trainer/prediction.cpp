#include "train/trainer/prediction.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/base/json.h"
#include "runtime/base/limits.h"
#include "runtime/base/python_json.h"
#include "train/report/format.h"
#include "train/report/trainer_state.h"
#include "train/scores/text_scores.h"
#include "train/trainer/run_samples.h"
#include "troupe/actor_pool.h"

namespace troupe::train {
namespace {

constexpr const char* kJiebaVariable = "TROUPE_JIEBA";
constexpr const char* kPredictionsFile = "generated_predictions.jsonl";
// A batch of long answers of a large model takes hours on a CPU.
constexpr auto kBatchTimeout = std::chrono::hours(48);
constexpr auto kLookAtUser = std::chrono::milliseconds(200);
// A batch that has cost so many processes is given up.
constexpr int kTriesMax = 5;

// jieba's folder: named, or where tools/setup puts it beside the build folder of this program.
std::string jieba_folder(const Environment& environment) {
  if (const auto named = environment.get(kJiebaVariable); named && !named->empty()) return *named;
  std::array<char, 4096> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (size <= 0) return {};
  std::string folder(path.data(), static_cast<std::size_t>(size));
  for (int up = 0; up < 3; ++up) folder.resize(std::min(folder.rfind('/'), folder.size()));
  return folder + "/jieba";
}

// transformers' clean_up_tokenization.
std::string cleaned_up(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
      {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
      {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [old, fresh] : kReplacements) {
    for (std::size_t at = 0; (at = text.find(old, at)) != std::string::npos; at += fresh.size())
      text.replace(at, old.size(), fresh);
  }
  return text;
}

std::string text_of(const PreparedPrediction& prepared, std::span<const TokenId> ids,
                    bool skip_special_tokens) {
  std::string text = prepared.prompts.tokenizer.decode(ids, skip_special_tokens);
  return prepared.cleans_up ? cleaned_up(std::move(text)) : text;
}

bool needs_dictionary(const std::string& text) {
  return WordCutter::needs_dictionary(characters_of(text));
}

// A text, or the content of an added token.
std::optional<std::string> token_text(const json::Value& value) {
  if (value.is_string()) return std::string(value.get_string());
  if (const auto text = json::find_string(value, "content")) return std::string(*text);
  return std::nullopt;
}

// With which generation ends, too: those that the tokenizer's files call additional special tokens.
void add_special_stops(FileSystem& files, const std::string& model, PreparedPrediction& prepared) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const auto text = files.read(join_path(model, name), limits::kJsonFileBytesMax);
    if (!text.ok()) continue;
    const auto config = json::parse(*text, name);
    if (!config.ok()) continue;  // the tokenizer was read without it
    if (const auto cleans = json::find_bool(*config, "clean_up_tokenization_spaces"))
      prepared.cleans_up = *cleans;
    const auto* tokens = json::find(*config, "additional_special_tokens");
    if (!tokens || !tokens->is_array()) continue;
    auto& stops = prepared.prompts.stop_ids;
    for (const auto& token : tokens->get_array()) {
      const auto word = token_text(token);
      const auto id = word ? prepared.prompts.tokenizer.token_id(*word) : std::nullopt;
      if (id && std::ranges::find(stops, *id) == stops.end()) stops.push_back(*id);
    }
  }
}

struct Scores {
  std::vector<double> rouge_1, rouge_2, rouge_l, bleu;
};

}  // namespace

Result<PreparedPrediction> prepare_prediction(FileSystem& files, const Environment& environment,
                                              const TrainConfig& config,
                                              const Tokenizer& tokenizer) {
  PreparedPrediction prepared{
      .prompts = TROUPE_TRY(build_prompts(files, data_options(config), tokenizer)),
      .cleans_up = false,
      .cutter = WordCutter(),
      .notes = {}};
  add_special_stops(files, config.model.model_name_or_path, prepared);
  prepared.notes = prepared.prompts.notes;
  const std::string jieba = jieba_folder(environment);
  if (files.exists(join_path(jieba, "dict.txt"))) {
    prepared.cutter = TROUPE_TRY(WordCutter::load(files, jieba));
    return prepared;
  }
  const bool chinese = std::ranges::any_of(prepared.prompts.rows, [&](const PromptRow& row) {
    return needs_dictionary(text_of(prepared, row.expected, true));
  });
  if (chinese) {
    prepared.cutter.reset();
    prepared.notes.push_back(fmt::format(
        "warning: the answers have Chinese words, which are told apart by jieba's dictionary, and "
        "that is not here: predict_rouge-1, -2 and -l will be left out; 'tools/setup --jieba' "
        "brings it, {} names a folder of the Python package",
        kJiebaVariable));
  }
  return prepared;
}

PredictorSetup predictor_setup(const TrainConfig& config, const PreparedPrediction& prepared,
                               const std::string& model, std::vector<std::string> adapters,
                               int threads) {
  const PredictionSection& wanted = config.prediction;
  PredictorSetup setup{.model = model,
                       .adapters = std::move(adapters),
                       .hub_cache = config.model.cache_dir.value_or(""),
                       .threads = threads};
  setup.sampling.repetition_penalty = wanted.repetition_penalty;
  setup.sampling.temperature = wanted.do_sample ? wanted.temperature : 0.0;
  setup.sampling.top_k = std::max<std::int64_t>(0, wanted.top_k);
  setup.sampling.top_p = wanted.top_p;
  if (wanted.max_new_tokens > 0) {
    setup.tokens_max = wanted.max_new_tokens;
  } else {
    setup.length_max = wanted.max_length;
  }
  setup.stop_ids.assign(prepared.prompts.stop_ids.begin(), prepared.prompts.stop_ids.end());
  return setup;
}

Result<std::vector<std::vector<TokenId>>> predict_rows(const Cluster& cluster,
                                                       const std::vector<PromptRow>& rows,
                                                       const PredictionJob& job,
                                                       const PredictionWatch& watch) {
  const std::int64_t count = std::ssize(rows);
  std::vector<PromptBatch> batches;
  for (std::int64_t row = 0; row < count; ++row) {
    if (row % job.batch_rows == 0)
      batches.push_back({.seed = job.seed + static_cast<std::uint64_t>(row), .prompts = {}});
    const auto& prompt = rows[static_cast<std::size_t>(row)].prompt;
    batches.back().prompts.emplace_back(prompt.begin(), prompt.end());
  }
  const auto members = static_cast<std::size_t>(
      std::min<std::int64_t>(job.predictors, std::max<std::int64_t>(1, std::ssize(batches))));
  const auto pool = TROUPE_TRY(
      ActorPool<PredictorActor>::create(cluster,
                                        {.member = job.member,
                                         .members_min = members,
                                         .members_max = members,
                                         .waiting_max = std::max<std::size_t>(1, batches.size()),
                                         .tries_max = kTriesMax},
                                        job.setup));
  auto answers = pool.with({.timeout = kBatchTimeout, .retry = true})
                     .map<&PredictorActor::answer>(batches, {.window = 2 * members});
  std::vector<std::vector<TokenId>> out;
  Status trouble;
  const auto stop = [&](Status why) {
    static_cast<void>(pool.stop({.timeout = std::chrono::milliseconds(0)}));
    return why;
  };
  while (std::ssize(out) < count) {
    if (watch.progress) watch.progress(std::ssize(out), count);
    auto next = answers.next();
    auto item = next.get(kLookAtUser);
    while (item.status().code() == Code::kDeadlineExceeded && !next.ready()) {
      if (const Status now = pool.status().trouble;
          !now.ok() && now.message() != trouble.message()) {
        trouble = now;
        if (watch.trouble) watch.trouble(trouble);
      }
      if (watch.is_stopped && watch.is_stopped()) {
        return stop(error(Code::kCancelled, "{} of {} rows were predicted: nothing is written",
                          out.size(), count));
      }
      item = next.get(kLookAtUser);
    }
    if (!item.ok()) return stop(item.status());
    if (!*item) return error(Code::kInternal, "{} answers for {} rows", out.size(), count);
    if (!(*item)->result.ok()) {
      const Status& why = (*item)->result.status();
      return stop(why.prefixed(fmt::format("row {}", out.size())));
    }
    for (auto& answer : *(*item)->result) out.emplace_back(answer.begin(), answer.end());
  }
  if (watch.progress) watch.progress(count, count);
  static_cast<void>(pool.stop());
  return out;
}

Result<json::Object> save_predictions(FileSystem& files, const TrainConfig& config,
                                      const PreparedPrediction& prepared,
                                      const std::vector<std::vector<TokenId>>& answers,
                                      double seconds, int world_size,
                                      std::vector<std::string>& notes) {
  const bool skips = config.prediction.skip_special_tokens;
  const auto& rows = prepared.prompts.rows;
  bool has_words = prepared.cutter.has_value();
  Scores scores;
  std::string lines;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string answer = text_of(prepared, answers[i], true);
    const std::string expected = text_of(prepared, rows[i].expected, true);
    scores.bleu.push_back(bleu_score(answer, expected));
    if (has_words && !prepared.cutter->has_dictionary() &&
        (needs_dictionary(answer) || needs_dictionary(expected))) {
      has_words = false;
      notes.push_back(fmt::format(
          "warning: predict_rouge-1, -2 and -l are left out: an answer has Chinese words, which "
          "are told apart by jieba's dictionary, and that is not here; 'tools/setup --jieba' "
          "brings it, {} names a folder of the Python package",
          kJiebaVariable));
    }
    if (has_words) {
      const RougeScores rouge = rouge_scores(*prepared.cutter, answer, expected);
      scores.rouge_1.push_back(rouge.rouge_1);
      scores.rouge_2.push_back(rouge.rouge_2);
      scores.rouge_l.push_back(rouge.rouge_l);
    }
    lines += json::python_json(json::Object{
                 {"prompt", text_of(prepared, rows[i].prompt, false)},
                 {"predict", skips ? answer : text_of(prepared, answers[i], false)},
                 {"label", skips ? expected : text_of(prepared, rows[i].expected, false)}}) +
             "\n";
  }
  const std::string& folder = config.training.output_dir;
  TROUPE_RETURN_IF_ERROR(files.create_directories(folder));
  TROUPE_RETURN_IF_ERROR(write_file_atomically(files, join_path(folder, kPredictionsFile), lines));
  json::Object metrics{{"predict_bleu-4", numpy_mean(scores.bleu)}};
  if (has_words) {
    metrics["predict_rouge-1"] = numpy_mean(scores.rouge_1);
    metrics["predict_rouge-2"] = numpy_mean(scores.rouge_2);
    metrics["predict_rouge-l"] = numpy_mean(scores.rouge_l);
  }
  const auto count = static_cast<double>(rows.size());
  const double steps = std::ceil(
      count / static_cast<double>(config.evaluation.per_device_eval_batch_size * world_size));
  metrics["predict_runtime"] = round_to(seconds, 4);
  if (seconds > 0) {
    metrics["predict_samples_per_second"] = round_to(count / seconds, 3);
    metrics["predict_steps_per_second"] = round_to(steps / seconds, 3);
  }
  TROUPE_RETURN_IF_ERROR(save_metrics(files, folder, "predict", metrics));
  return metrics;
}

}  // namespace troupe::train
