#include "train/report/trainer_state.h"

#include <cmath>

#include "runtime/base/limits.h"
#include "train/report/format.h"

namespace troupe::train {
namespace {

constexpr int kHistoryLossDigits = 4;
constexpr int kRuntimeDigits = 4;
constexpr int kResultRateDigits = 3;

// 500 for 500.0: transformers keeps whole numbers of steps as integers.
json::Value steps_value(double steps) {
  if (steps == std::floor(steps) && std::fabs(steps) < 1e15) {
    return static_cast<std::int64_t>(steps);
  }
  return steps;
}

template <typename T>
json::Value or_null(const std::optional<T>& value) {
  if (!value) return nullptr;
  if constexpr (std::is_same_v<T, std::string>) {
    return json::Value(boost::json::string_view(value->data(), value->size()));
  } else {
    return *value;
  }
}

json::Object stateful_callbacks(const TrainerState& state) {
  json::Object args{{"should_epoch_stop", false},
                    {"should_evaluate", false},
                    {"should_log", false},
                    {"should_save", state.should_save},
                    {"should_training_stop", state.should_training_stop}};
  json::Object callbacks;
  if (state.early_stopping) {
    callbacks["EarlyStoppingCallback"] = json::Object{
        {"args", json::Object{{"early_stopping_patience", state.early_stopping->patience},
                              {"early_stopping_threshold", 0.0}}},
        {"attributes",
         json::Object{{"early_stopping_patience_counter", state.early_stopping->counter}}}};
  }
  callbacks["TrainerControl"] =
      json::Object{{"args", std::move(args)}, {"attributes", json::Object{}}};
  return callbacks;
}

std::optional<EarlyStoppingState> early_stopping_of(const json::Value& state) {
  const json::Value* at = &state;
  for (const char* key : {"stateful_callbacks", "EarlyStoppingCallback"}) {
    at = json::find(*at, key);
    if (!at) return std::nullopt;
  }
  const auto* args = json::find(*at, "args");
  const auto* attributes = json::find(*at, "attributes");
  if (!args || !attributes) return std::nullopt;
  return EarlyStoppingState{
      .patience = json::find_integer(*args, "early_stopping_patience").value_or(0),
      .counter = json::find_integer(*attributes, "early_stopping_patience_counter").value_or(0)};
}

double per_second(std::int64_t count, double runtime_s) {
  return runtime_s > 0 ? round_to(static_cast<double>(count) / runtime_s, kResultRateDigits) : 0.0;
}

// json.dump(…, indent=4): the same text as with 2, every level twice as deep.
std::string indent_4(const std::string& text) {
  std::string out;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const auto end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const auto spaces = text.find_first_not_of(' ', begin) - begin;
    out.append(spaces, ' ').append(text, begin, end - begin);
    begin = end;
  }
  return out;
}

// Whether it is an evaluation's, of all data or of a data set: eval_loss, eval_NAME_loss.
bool is_eval_log(const json::Value& entry) {
  const auto* object = entry.if_object();
  return object && std::ranges::any_of(*object, [](const auto& member) {
           const std::string_view key = member.key();
           return key.starts_with("eval_") && key.ends_with("_loss");
         });
}

}  // namespace

std::string trainer_state_text(const TrainerState& state) {
  const json::Object object{{"best_global_step", or_null(state.best_global_step)},
                            {"best_metric", or_null(state.best_metric)},
                            {"best_model_checkpoint", or_null(state.best_model_checkpoint)},
                            {"epoch", state.epoch},
                            {"eval_steps", steps_value(state.eval_steps)},
                            {"global_step", state.global_step},
                            {"is_hyper_param_search", false},
                            {"is_local_process_zero", true},
                            {"is_world_process_zero", true},
                            {"log_history", state.log_history},
                            {"logging_steps", steps_value(state.logging_steps)},
                            {"max_steps", state.max_steps},
                            {"num_input_tokens_seen", state.num_input_tokens_seen},
                            {"num_train_epochs", state.num_train_epochs},
                            {"save_steps", steps_value(state.save_steps)},
                            {"stateful_callbacks", stateful_callbacks(state)},
                            {"total_flos", state.total_flos},
                            {"train_batch_size", state.train_batch_size},
                            {"trial_name", nullptr},
                            {"trial_params", nullptr}};
  return json::write_indented(object, true) + "\n";
}

Result<TrainerState> parse_trainer_state(std::string_view text, std::string_view name) {
  const auto value = TROUPE_TRY(parse_python_json(text, name));
  TrainerState state;
  const auto global_step = json::find_integer(value, "global_step");
  const auto* history = json::find(value, "log_history");
  if (!global_step || !history || !history->is_array()) {
    return error(Code::kInvalidArgument, "{}: no \"global_step\" number and \"log_history\" array",
                 name);
  }
  state.global_step = *global_step;
  state.log_history = history->get_array();
  const auto number = [&](const char* key, double& out) {
    out = json::find_number(value, key).value_or(out);
  };
  const auto integer = [&](const char* key, std::int64_t& out) {
    out = json::find_integer(value, key).value_or(out);
  };
  number("epoch", state.epoch);
  number("eval_steps", state.eval_steps);
  number("logging_steps", state.logging_steps);
  number("save_steps", state.save_steps);
  number("total_flos", state.total_flos);
  integer("max_steps", state.max_steps);
  integer("num_input_tokens_seen", state.num_input_tokens_seen);
  integer("num_train_epochs", state.num_train_epochs);
  integer("train_batch_size", state.train_batch_size);
  state.best_global_step = json::find_integer(value, "best_global_step");
  state.best_metric = json::find_number(value, "best_metric");
  state.best_model_checkpoint = json::find_string(value, "best_model_checkpoint");
  state.early_stopping = early_stopping_of(value);
  return state;
}

json::Object train_log(double epoch, double grad_norm, double learning_rate, double loss,
                       std::int64_t step) {
  return {{"epoch", epoch},
          {"grad_norm", grad_norm},
          {"learning_rate", learning_rate},
          {"loss", round_to(loss, kHistoryLossDigits)},
          {"step", step}};
}

json::Object eval_log(double epoch, double eval_loss, double runtime_s, std::int64_t samples,
                      std::int64_t eval_batches, std::int64_t step, std::string_view prefix) {
  const auto key = [&](std::string_view name) { return fmt::format("{}{}", prefix, name); };
  return {{"epoch", epoch},
          {key("loss"), eval_loss},
          {key("runtime"), round_to(runtime_s, kRuntimeDigits)},
          {key("samples_per_second"), per_second(samples, runtime_s)},
          {key("steps_per_second"), per_second(eval_batches, runtime_s)},
          {"step", step}};
}

std::optional<json::Object> find_eval_log(const TrainerState& state, std::int64_t step) {
  std::optional<json::Object> found;
  for (const auto& entry : state.log_history) {
    if (!is_eval_log(entry) || json::find_integer(entry, "step") != step) continue;
    if (!found) found.emplace();
    for (const auto& member : entry.get_object())
      found->insert_or_assign(member.key(), member.value());
  }
  return found;
}

std::optional<std::int64_t> last_eval_step(const TrainerState& state) {
  std::optional<std::int64_t> last;
  for (const auto& entry : state.log_history) {
    if (is_eval_log(entry)) last = json::find_integer(entry, "step");
  }
  return last;
}

void truncate_log_history(TrainerState& state, std::int64_t step) {
  json::Array kept;
  for (const auto& entry : state.log_history) {
    const auto entry_step = json::find_integer(entry, "step");
    if (entry_step && *entry_step <= step) kept.push_back(entry);
  }
  state.log_history = std::move(kept);
}

json::Object train_metrics(const TrainResults& results) {
  return {{"epoch", results.epoch},
          {"total_flos", results.total_flos},
          {"train_loss", results.train_loss},
          {"train_runtime", round_to(results.runtime_s, kRuntimeDigits)},
          {"train_samples_per_second", per_second(results.samples, results.runtime_s)},
          {"train_steps_per_second", per_second(results.steps_in_runtime, results.runtime_s)}};
}

json::Object final_log(const TrainResults& results) {
  json::Object entry = train_metrics(results);
  entry["step"] = results.steps;
  return entry;
}

Status save_metrics(FileSystem& files, const std::string& output_dir, std::string_view split,
                    const json::Object& metrics) {
  const auto write = [&](const std::string& name, const json::Object& object) {
    return write_file_atomically(files, join_path(output_dir, name),
                                 indent_4(json::write_indented(object, true)));
  };
  TROUPE_RETURN_IF_ERROR(write(fmt::format("{}_results.json", split), metrics));
  json::Object all;
  const std::string path = join_path(output_dir, "all_results.json");
  if (files.exists(path)) {
    const auto text = TROUPE_TRY(files.read(path, limits::kConfigBytesMax));
    // What is damaged is written anew: it holds nothing that the other files do not.
    if (const auto old = parse_python_json(text, path); old.ok() && old->is_object()) {
      all = old->get_object();
    }
  }
  for (const auto& member : metrics) all[member.key()] = member.value();
  return write("all_results.json", all);
}

}  // namespace troupe::train
