#include "train/config/deepspeed.h"

#include <cmath>
#include <initializer_list>

#include "runtime/base/limits.h"
#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "train/config/deepspeed_keys.h"
#include "train/config/keys.h"
#include "train/config/source.h"
#include "train/config/values.h"
#include "train/optimizer/schedule.h"

namespace troupe::train {
namespace {

// Whole configurations of models are small, but vocabularies have been seen inside.
constexpr std::uint64_t kModelConfigBytesMax = 16u << 20;

bool is_auto(const json::Value& value) { return value.is_string() && value.get_string() == "auto"; }

// The value at a dotted path, or nothing. Null counts as nothing.
bool equal_numerically(const json::Value& a, const json::Value& b) {
  if (a.is_array() && b.is_array()) {
    const auto& x = a.get_array();
    const auto& y = b.get_array();
    if (x.size() != y.size()) return false;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (!equal_numerically(x[i], y[i])) return false;
    }
    return true;
  }
  const auto x = read_number(a);
  const auto y = read_number(b);
  if (x.ok() && y.ok()) return *x == *y;
  const auto p = read_bool(a);
  const auto q = read_bool(b);
  if (p.ok() && q.ok()) return *p == *q;
  return a == b;
}

// Fills "auto" and collects disagreements, as HfTrainerDeepSpeedConfig.fill_match does.
class Matcher {
 public:
  explicit Matcher(json::Object& values) : values_(values) {}

  void match(std::string_view path, const json::Value& ours, std::string_view our_key) {
    auto* theirs = find_path(values_, path);
    if (!theirs) return;
    if (is_auto(*theirs)) {
      *theirs = ours;
    } else if (!equal_numerically(*theirs, ours)) {
      mismatches_.push_back(fmt::format("- ds {}={} vs hf {}={}", path, python_text(*theirs),
                                        our_key, python_text(ours)));
    }
  }
  void fill(std::string_view path, const json::Value& ours) {
    auto* theirs = find_path(values_, path);
    if (theirs && is_auto(*theirs)) *theirs = ours;
  }

  Status status() const {
    if (mismatches_.empty()) return {};
    return error(
        Code::kInvalidArgument,
        "Please correct the following DeepSpeed config values that mismatch "
        "TrainingArguments values:\n{}\nThe easiest method is to set these DeepSpeed config "
        "values to 'auto'.",
        join_words(mismatches_, "\n"));
  }

 private:
  static std::string python_text(const json::Value& value) {
    if (value.is_bool()) return value.get_bool() ? "True" : "False";
    if (!value.is_array()) return value_text(value);
    std::vector<std::string> parts;
    for (const auto& item : value.get_array()) parts.push_back(python_text(item));
    return "[" + join_words(parts) + "]";
  }

  json::Object& values_;
  std::vector<std::string> mismatches_;
};

Result<std::optional<std::int64_t>> size_at(json::Object& values, std::string_view path) {
  auto* value = find_path(values, path);
  if (!value || is_auto(*value)) return std::optional<std::int64_t>();
  const auto number = read_integer(*value);
  if (!number.ok()) return number.status().prefixed(path);
  if (*number < 1) return error(Code::kInvalidArgument, "{}: {} is below 1", path, *number);
  return std::optional<std::int64_t>(*number);
}

Result<int> read_stage(json::Object& values) {
  auto* value = find_path(values, "zero_optimization.stage");
  if (!value) return 0;
  const auto stage = read_integer(*value);
  if (!stage.ok()) return stage.status().prefixed("zero_optimization.stage");
  if (*stage < 0 || *stage > 3) {
    return error(Code::kInvalidArgument,
                 "zero_optimization.stage: {} is no stage; one of 0, 1, 2, 3", *stage);
  }
  return static_cast<int>(*stage);
}

// Where a block leaves a number out DeepSpeed's own default counts, not the training's.
Status check_optimizer_defaults(json::Object& values, const TrainingSection& training) {
  const bool lion = value_text(*find_path(values, "optimizer.type")) == "Lion";
  struct Default {
    const char* name;
    const char* key;
    double theirs, ours;
  };
  for (const Default& at :
       {Default{"lr", "learning_rate", 1e-3, training.learning_rate},
        Default{"betas", "adam_beta1", 0.9, training.adam_beta1},
        Default{"betas", "adam_beta2", lion ? 0.99 : 0.999, training.adam_beta2},
        Default{"eps", "adam_epsilon", lion ? training.adam_epsilon : 1e-8, training.adam_epsilon},
        Default{"weight_decay", "weight_decay", 0, training.weight_decay}}) {
    if (find_path(values, fmt::format("optimizer.params.{}", at.name)) || at.theirs == at.ours)
      continue;
    return error(Code::kInvalidArgument,
                 "optimizer.params.{} is not given: DeepSpeed takes its own default, {}, and {} "
                 "is {}; write \"auto\" for the training's, or the number",
                 at.name, at.theirs, at.key, at.ours);
  }
  return {};
}

// DeepSpeed's "Adam" is AdamW unless adam_w_mode is false: optimizer_choice().
Status check_optimizer(json::Object& values, const TrainingSection& training) {
  const std::string& optim = training.optim;
  auto* type = find_path(values, "optimizer.type");
  if (!find_path(values, "optimizer")) return {};
  if (!type) return error(Code::kInvalidArgument, "optimizer.type: missing");
  const auto name = value_text(*type);
  if (name == "AdamW" || name == "Adam" || name == "Lion") {
    if (optim.starts_with("adamw_torch") || (name == "Lion" && optim == "lion_32bit"))
      return check_optimizer_defaults(values, training);
    return error(Code::kInvalidArgument,
                 "optimizer.type={} and optim: {} name two optimizers; leave one of them out", name,
                 optim);
  }
  return error(Code::kUnsupported,
               "optimizer.type={} is not supported: of DeepSpeed's optimizers Adam, AdamW and "
               "Lion are here; use one of them, or leave the optimizer block out",
               name);
}

// Its parameters are looked at again when the run's steps are known (DeepSpeedSchedule).
Status check_own_schedule(json::Object& values, double learning_rate) {
  const auto* scheduler = find_path(values, "scheduler");
  if (!scheduler) return {};
  if (!find_path(values, "scheduler.type"))
    return error(Code::kInvalidArgument, "scheduler.type: missing");
  json::Value alone = *scheduler;
  // These values follow from the number of steps of the run.
  if (auto* params = alone.as_object().if_contains("params"); params && params->is_object())
    for (const char* key : {"total_num_steps", "warmup_num_steps"}) params->get_object().erase(key);
  return Schedule::make_deepspeed(alone, learning_rate, 0, 0).status();
}

// A limit under its name with or without stage3_; where both stand there they agree. "auto" that
// could not be filled is the default.
Status read_limit(json::Object& values, const std::string& name, std::int64_t& out) {
  for (const auto& path : {"zero_optimization.stage3_" + name, "zero_optimization." + name}) {
    const auto* value = find_path(values, path);
    if (!value || is_auto(*value)) continue;
    const auto number = read_integer(*value);
    if (!number.ok()) return number.status().prefixed(path);
    if (*number < 0) return error(Code::kInvalidArgument, "{}: {} is below 0", path, *number);
    out = *number;
  }
  return {};
}

Result<DeepSpeedLimits> read_limits(json::Object& values) {
  DeepSpeedLimits out;
  TROUPE_RETURN_IF_ERROR(read_limit(values, "max_live_parameters", out.max_live_parameters));
  TROUPE_RETURN_IF_ERROR(read_limit(values, "max_reuse_distance", out.max_reuse_distance));
  TROUPE_RETURN_IF_ERROR(read_limit(values, "prefetch_bucket_size", out.prefetch_bucket_size));
  TROUPE_RETURN_IF_ERROR(
      read_limit(values, "param_persistence_threshold", out.param_persistence_threshold));
  return out;
}

Result<std::optional<Precision>> read_reduce(json::Object& values) {
  const auto* value = find_path(values, "communication_data_type");
  if (!value) return std::optional<Precision>();
  const auto text = value_text(*value);
  if (text == "fp32" || text == "float32") return std::optional(Precision::kFloat32);
  if (text == "bf16" || text == "bfp16" || text == "bfloat16") {
    return std::optional(Precision::kBfloat16);
  }
  return error(Code::kUnsupported,
               "communication_data_type={} is not supported: fp16 overflows where gradients do "
               "not; use fp32 or bf16",
               text.substr(0, 40));
}

// The key that asks for offload: a section's device, or one of DeepSpeed's older flags, which do
// not go together.
Result<std::optional<std::string>> read_offload(json::Object& values, std::string_view section,
                                                std::initializer_list<const char*> flags) {
  const auto path = fmt::format("zero_optimization.{}.device", section);
  if (!deepspeed_keys().counts(path, values)) return std::optional<std::string>();
  for (const auto* flag : flags) {
    const auto at = std::string("zero_optimization.") + flag;
    const auto* value = find_path(values, at);
    if (!value || !TROUPE_TRY(read_bool(*value))) continue;
    if (find_path(values, fmt::format("zero_optimization.{}", section))) {
      return error(Code::kInvalidArgument,
                   "{} is the older name of zero_optimization.{}, which stands there too; leave "
                   "one of them out",
                   at, section);
    }
    return std::optional(at);
  }
  if (const auto* device = find_path(values, path);
      device && TROUPE_TRY(reads_offload_device(*device, path)))
    return std::optional(path);
  return std::optional<std::string>();
}

Status read_offloads(json::Object& values, ResolvedDeepSpeed& out) {
  const auto optimizer = TROUPE_TRY(read_offload(values, "offload_optimizer", {"cpu_offload"}));
  const auto parameters = TROUPE_TRY(
      read_offload(values, "offload_param", {"cpu_offload_param", "cpu_offload_params"}));
  if (const auto* value = find_path(values, "zero_optimization.offload_optimizer.ratio")) {
    const auto ratio = read_number(*value);
    if (!ratio.ok()) return ratio.status().prefixed("zero_optimization.offload_optimizer.ratio");
    if (*ratio < 0 || *ratio > 1) {
      return error(Code::kInvalidArgument,
                   "zero_optimization.offload_optimizer.ratio: {} is not between 0 and 1", *ratio);
    }
    if (*ratio < 1 && out.zero_stage != 3)
      return error(Code::kInvalidArgument, "Partial offloading only supported for ZeRO Stage 3.");
  }
  if (parameters) {
    out.offload = OffloadChoice::kParameters;
    out.offload_path = *parameters;
    if (!optimizer) {
      out.notes.push_back(
          "parameters in the host's memory are updated there: optimizer state is offloaded, too");
    }
  } else if (optimizer) {
    out.offload = OffloadChoice::kOptimizer;
    out.offload_path = *optimizer;
  }
  return {};
}

// What a user should know of what follows from the configuration.
std::vector<std::string> make_notes(const ResolvedDeepSpeed& resolved,
                                    const TrainingSection& training) {
  std::vector<std::string> notes = resolved.notes;
  if (resolved.zero_stage == 0) {
    const auto* zero = find_path(resolved.values, "zero_optimization");
    const bool more_than_stage = zero && zero->is_object() && zero->get_object().size() > 1;
    notes.push_back(
        fmt::format("ZeRO stage 0 is data parallelism{}",
                    more_than_stage ? "; its buckets and overlap settings have no effect" : ""));
  }
  if (const auto* schedule = resolved.values.if_contains("scheduler"))
    notes.push_back(fmt::format("the learning rate follows DeepSpeed's {}, not lr_scheduler_type",
                                json::find_string(*schedule, "type").value_or("")));
  // DeepSpeed's own default is 0.0 or 1.0, depending on its version.
  const bool given = resolved.values.contains("gradient_clipping");
  notes.push_back(training.max_grad_norm > 0
                      ? fmt::format("{}gradients are clipped to max_grad_norm, {}",
                                    given ? "" : "gradient_clipping is not given: ",
                                    json::python_float(training.max_grad_norm))
                      : "gradients are not clipped: max_grad_norm is 0");
  return notes;
}

void match_training(Matcher& matcher, const DeepSpeedContext& context) {
  const auto& t = context.training;
  matcher.match("train_micro_batch_size_per_gpu", t.per_device_train_batch_size,
                "per_device_train_batch_size");
  matcher.match("gradient_accumulation_steps", t.gradient_accumulation_steps,
                "gradient_accumulation_steps");
  matcher.match("train_batch_size",
                context.world_size * t.per_device_train_batch_size * t.gradient_accumulation_steps,
                "train_batch_size (calculated)");
  matcher.match("gradient_clipping", t.max_grad_norm, "max_grad_norm");
  matcher.match("optimizer.params.lr", t.learning_rate, "learning_rate");
  json::Array betas;
  betas.push_back(t.adam_beta1);
  betas.push_back(t.adam_beta2);
  matcher.match("optimizer.params.betas", betas, "adam_beta1+adam_beta2");
  matcher.match("optimizer.params.eps", t.adam_epsilon, "adam_epsilon");
  matcher.match("optimizer.params.weight_decay", t.weight_decay, "weight_decay");
  matcher.match("fp16.enabled", context.fp16, "fp16|fp16_full_eval+fp16_backend(amp)");
  matcher.match("bf16.enabled", context.bf16, "bf16|bf16_full_eval");
}

void fill_model_sizes(Matcher& matcher, const DeepSpeedContext& context) {
  if (!context.hidden_size) return;
  const std::int64_t h = *context.hidden_size;
  matcher.fill("zero_optimization.reduce_bucket_size", h * h);
  // ⌊0.9 h²⌋ in whole numbers.
  matcher.fill("zero_optimization.stage3_prefetch_bucket_size", h * h * 9 / 10);
  matcher.fill("zero_optimization.stage3_param_persistence_threshold", 10 * h);
}

}  // namespace

Result<json::Object> read_deepspeed(const json::Value& source, FileSystem& files) {
  if (source.is_object()) return source.get_object();
  const auto path = read_text(source);
  if (!path.ok() || path->empty()) {
    return error(Code::kInvalidArgument, "expected a path or a mapping, found {}",
                 json::write(source));
  }
  json::ParseOptions options;
  options.relaxed = true;
  options.reject_duplicate_keys = true;
  // A mapping given on the command line as text.
  if (trim(*path).starts_with('{')) {
    auto value = TROUPE_TRY(json::parse(*path, "the text", options));
    return std::move(value.as_object());
  }
  const auto text = files.read(*path, limits::kConfigBytesMax);
  if (!text.ok()) return text.status();
  auto value = TROUPE_TRY(json::parse(*text, *path, options));
  if (!value.is_object()) {
    return error(Code::kInvalidArgument, "{}:1: a DeepSpeed configuration is a mapping", *path);
  }
  return std::move(value.get_object());
}

Result<bool> reads_offload_device(const json::Value& value, std::string_view key) {
  const auto text = lower_case(value_text(value).substr(0, 40));
  if (text == "none" || text == "cpu") return text == "cpu";
  if (text == "nvme") {
    return error(Code::kUnsupported,
                 "{}=nvme is not supported: nothing is offloaded to a disk; use cpu, and more "
                 "machines where their memory is too small",
                 key);
  }
  return error(Code::kInvalidArgument, "{}: '{}' is no valid value; one of none, cpu, nvme{}", key,
               text, did_you_mean(text, {"none", "cpu", "nvme"}));
}

std::optional<std::int64_t> read_hidden_size(const std::string& model_folder, FileSystem& files) {
  if (model_folder.empty()) return std::nullopt;
  const auto text = files.read(join_path(model_folder, "config.json"), kModelConfigBytesMax);
  if (!text.ok()) return std::nullopt;
  json::ParseOptions options;
  options.bytes_max = kModelConfigBytesMax;
  const auto config = json::parse(*text, "config.json", options);
  if (!config.ok()) return std::nullopt;
  auto size = json::find_integer(*config, "hidden_size");
  if (!size) size = json::find_integer(*config, "n_embd");
  constexpr std::int64_t kHiddenMax = 1 << 20;
  if (!size || *size < 1 || *size > kHiddenMax) return std::nullopt;
  return size;
}

Result<DeepSpeedBatch> resolve_deepspeed_batch(std::optional<std::int64_t> train_batch_size,
                                               std::optional<std::int64_t> micro_batch_size,
                                               std::optional<std::int64_t> accumulation_steps,
                                               std::int64_t world_size) {
  auto train = train_batch_size;
  auto micro = micro_batch_size;
  auto accumulation = accumulation_steps;
  if (!train && !micro) {
    return error(Code::kInvalidArgument,
                 "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided");
  }
  // DeepSpeed's _set_batch_related_parameters.
  if (train && micro && !accumulation) {
    accumulation = *train / *micro / world_size;
  } else if (train && !micro && accumulation) {
    micro = *train / world_size / *accumulation;
  } else if (train && !micro) {
    accumulation = 1;
    micro = *train / world_size;
  } else if (!train) {
    accumulation = accumulation.value_or(1);
    train = *micro * *accumulation * world_size;
  }
  if (*micro < 1 || *accumulation < 1 || *train != *micro * *accumulation * world_size) {
    return error(Code::kInvalidArgument,
                 "Check batch related parameters. train_batch_size is not equal to "
                 "micro_batch_per_gpu * gradient_acc_step * world_size {} != {} * {} * {}",
                 *train, *micro, *accumulation, world_size);
  }
  return DeepSpeedBatch{*train, *micro, *accumulation};
}

Result<LossScaleRule> read_loss_scale_rule(const json::Object& config) {
  const auto* given = config.if_contains("fp16");
  const json::Object none;
  const json::Object& fp16 = given && given->is_object() ? given->get_object() : none;
  // Left out and "auto" stand for the default.
  const auto read = [&](const char* key, double least, double most, double& out) -> Status {
    const auto* value = fp16.if_contains(key);
    if (!value || value->is_null() || is_auto(*value)) return {};
    const auto number = read_number(*value);
    if (!number.ok()) return number.status().prefixed(fmt::format("fp16.{}", key));
    if (*number < least || *number > most)
      return error(Code::kInvalidArgument, "fp16.{}: {} is not between {} and {}", key, *number,
                   least, most);
    out = *number;
    return {};
  };
  double scale = 0, power = 16, window = 1000, hysteresis = 2, least = 1;
  TROUPE_RETURN_IF_ERROR(read("loss_scale", 0, 1e30, scale));
  TROUPE_RETURN_IF_ERROR(read("initial_scale_power", 0, 100, power));
  TROUPE_RETURN_IF_ERROR(read("loss_scale_window", 1, 1e12, window));
  TROUPE_RETURN_IF_ERROR(read("hysteresis", 1, 1e12, hysteresis));
  TROUPE_RETURN_IF_ERROR(read("min_loss_scale", 0, 1e30, least));
  const auto* refills = fp16.if_contains("consecutive_hysteresis");
  return LossScaleRule{.initial = scale > 0 ? scale : std::exp2(power),
                       .is_dynamic = scale == 0,
                       .window = static_cast<std::int64_t>(window),
                       .hysteresis = static_cast<std::int64_t>(hysteresis),
                       .refills_hysteresis = refills && read_bool(*refills).value_or(false),
                       .least = least,
                       .of_deepspeed = true};
}

Result<ResolvedDeepSpeed> resolve_deepspeed(const json::Object& config,
                                            const DeepSpeedContext& context) {
  const auto& training = context.training;
  const double largest = static_cast<double>(training.per_device_train_batch_size) *
                         static_cast<double>(training.gradient_accumulation_steps) *
                         static_cast<double>(context.world_size);
  if (largest > 9e18) {
    return error(Code::kInvalidArgument, "a step of {} sequences is beyond all bounds", largest);
  }
  ResolvedDeepSpeed out;
  out.values = config;
  if (find_path(out.values, "fp16.enabled") && find_path(out.values, "bf16.enabled") &&
      read_bool(*find_path(out.values, "fp16.enabled")).value_or(false) &&
      read_bool(*find_path(out.values, "bf16.enabled")).value_or(false)) {
    return error(Code::kInvalidArgument,
                 "bfloat16 and fp16 modes cannot be simultaneously enabled");
  }
  out.zero_stage = TROUPE_TRY(read_stage(out.values));
  const ShownName shown = [](const std::string& path) { return path; };
  TROUPE_RETURN_IF_ERROR(deepspeed_keys().check(out.values, shown));
  for (auto& notice : deepspeed_keys().notices(out.values, shown))
    out.notes.push_back(std::move(notice));
  TROUPE_RETURN_IF_ERROR(read_offloads(out.values, out));
  TROUPE_RETURN_IF_ERROR(check_optimizer(out.values, context.training));
  TROUPE_RETURN_IF_ERROR(check_own_schedule(out.values, context.training.learning_rate));
  TROUPE_RETURN_IF_ERROR(read_loss_scale_rule(out.values).status());

  Matcher matcher(out.values);
  match_training(matcher, context);
  fill_model_sizes(matcher, context);
  TROUPE_RETURN_IF_ERROR(matcher.status());

  const auto train = TROUPE_TRY(size_at(out.values, "train_batch_size"));
  const auto micro = TROUPE_TRY(size_at(out.values, "train_micro_batch_size_per_gpu"));
  const auto accumulation = TROUPE_TRY(size_at(out.values, "gradient_accumulation_steps"));
  out.batch = TROUPE_TRY(resolve_deepspeed_batch(train, micro, accumulation, context.world_size));
  if (out.batch.micro_batch_size != training.per_device_train_batch_size ||
      out.batch.accumulation_steps != training.gradient_accumulation_steps) {
    return error(Code::kInvalidArgument,
                 "Check batch related parameters. train_batch_size is not equal to "
                 "micro_batch_per_gpu * gradient_acc_step * world_size {} != {} * {} * {}",
                 out.batch.train_batch_size, training.per_device_train_batch_size,
                 training.gradient_accumulation_steps, context.world_size);
  }
  constexpr const char* kStrategies[] = {"ddp", "zero1", "zero2", "zero3"};
  out.strategy = kStrategies[out.zero_stage];
  if (out.zero_stage == 3) out.limits = TROUPE_TRY(read_limits(out.values));
  out.reduce = TROUPE_TRY(read_reduce(out.values));
  out.notes = make_notes(out, training);
  return out;
}

}  // namespace troupe::train
