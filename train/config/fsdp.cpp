#include "train/config/fsdp.h"

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

std::string lower_text(const json::Value& value) { return lower_case(value_text(value)); }

// torch.distributed.fsdp.ShardingStrategy by number and name → our name.
std::optional<std::string> strategy_of(const json::Value& value) {
  struct Name {
    const char* number;
    const char* name;
    const char* ours;
  };
  constexpr Name kNames[] = {{"1", "full_shard", "zero3"},
                             {"2", "shard_grad_op", "shard_grad_op"},
                             {"3", "no_shard", "ddp"},
                             {"4", "hybrid_shard", "hsdp"},
                             {"5", "hybrid_shard_zero2", "hsdp_zero2"}};
  const auto text = lower_text(value);
  for (const auto& entry : kNames) {
    if (text == entry.number || text == entry.name) return entry.ours;
  }
  return std::nullopt;
}

ForeignKeys build_fsdp_keys() {
  ForeignKeys t;
  t.used("sharding_strategy|reshard_after_forward|version", "what is sharded over the trainers")
      .used("state_dict_type", "form of checkpoints (troupe.checkpoint_format)")
      .one_of("state_dict_type", "FULL_STATE_DICT|SHARDED_STATE_DICT|LOCAL_STATE_DICT")
      .used("activation_checkpointing", "compute activations again in the backward pass")
      .inert(
          "auto_wrap_policy|transformer_layer_cls_to_wrap|transformer_cls_to_wrap|"
          "transformer_cls_names_to_wrap|min_num_params",
          "units are the embedding, every block and the head; wrapping does not change results")
      .one_of("auto_wrap_policy", "TRANSFORMER_BASED_WRAP|SIZE_BASED_WRAP|NO_WRAP")
      .inert("backward_prefetch|forward_prefetch|limit_all_gathers",
             "troupe.prefetch_bucket_size decides how far ahead units are gathered; the results "
             "are the same")
      .one_of("backward_prefetch", "BACKWARD_PRE|BACKWARD_POST|NO_PREFETCH|1|2|none")
      .inert("final_state_dict_type", "the finished model is written whole in either case")
      .inert("use_orig_params", "the optimizer always knows every parameter by its name")
      .inert("sync_module_states|cpu_ram_efficient_loading",
             "every trainer reads its part of the same files, which are mapped")
      .used("offload_params|cpu_offload",
            "parameters and optimizer state in the host's memory, updated there (troupe.offload)")
      .inert("cpu_offload_pin_memory", "what is copied is always pinned")
      .refused("ignored_modules|ignored_params", "none",
               "every parameter is sharded alike; leave it out")
      .refused("mixed_precision_policy", "none",
               "use bf16: true, and troupe.reduce_dtype for what gradients travel in")
      .refused("xla|xla_fsdp_v2|xla_fsdp_grad_ckpt", "false", "no TPU is used; leave it out")
      .refused("xla_fsdp_settings", "", "no TPU is used; leave it out")
      .same("offload_params|cpu_offload")
      .same("transformer_layer_cls_to_wrap|transformer_cls_to_wrap|transformer_cls_names_to_wrap")
      .typed(ValueType::kBool,
             "activation_checkpointing|forward_prefetch|limit_all_gathers|use_orig_params|"
             "sync_module_states|cpu_ram_efficient_loading|cpu_offload_pin_memory")
      .typed(ValueType::kNumber, "min_num_params")
      .typed(ValueType::kText, "state_dict_type|final_state_dict_type")
      .typed(ValueType::kTextList,
             "transformer_layer_cls_to_wrap|transformer_cls_to_wrap|transformer_cls_names_to_wrap");
  return t;
}

// The reader of one source's settings, whose names have lost their fsdp_.
class FsdpReader {
 public:
  FsdpReader(const json::Object& settings, const FsdpSource& source)
      : settings_(settings), source_(source) {}

  Result<FsdpSettings> read() {
    version_ = TROUPE_TRY(read_version());
    FsdpSettings out;
    out.strategy = TROUPE_TRY(read_strategy());
    TROUPE_RETURN_IF_ERROR(read_format(out));
    TROUPE_RETURN_IF_ERROR(check_prefetch());
    TROUPE_RETURN_IF_ERROR(read_offload(out));
    if (const auto* value = find("activation_checkpointing")) {
      const auto on = read_bool(*value);
      if (!on.ok()) return on.status().prefixed(source_.shown("activation_checkpointing"));
      if (*on) out.activation_checkpointing_key = source_.shown("activation_checkpointing");
    }
    return out;
  }

 private:
  const json::Value* find(std::string_view name) const {
    const auto* value = settings_.if_contains(json_view(name));
    return value && !value->is_null() ? value : nullptr;
  }
  Claim claim(std::string_view name, std::string ours) const {
    return {source_.shown(std::string(name)), to_value(ours), value_text(*find(name))};
  }

  // 0: not given.
  Result<std::int64_t> read_version() const {
    const auto* value = find("version");
    if (!value) return 0;
    const auto version = read_integer(*value);
    if (!version.ok()) return version.status().prefixed(source_.shown("version"));
    if (*version != 1 && *version != 2) {
      return error(Code::kInvalidArgument, "{}: there is no FSDP{}; use 1 or 2",
                   source_.shown("version"), *version);
    }
    return *version;
  }

  Result<Claim> read_strategy() const {
    const bool named = source_.words && !source_.words->strategy.empty();
    const auto by_config = version_ == 2 ? read_reshard() : read_strategy_name();
    if (!by_config.ok()) return by_config.status();
    const auto& configured = *by_config;
    if (!named) {
      if (configured) return *configured;
      return Claim{source_.shown(source_.words ? "" : "sharding_strategy"), "zero3",
                   source_.words ? "true" : "FULL_SHARD"};
    }
    const auto& word = source_.words->strategy;
    const auto ours = *strategy_of(to_value(word));
    if (configured && value_text(configured->value) != ours) {
      return error(Code::kInvalidArgument,
                   "fsdp={} ({}) and {}={} ({}) disagree about the strategy; make them agree, or "
                   "leave one of them out",
                   word, ours, configured->key, configured->shown, value_text(configured->value));
    }
    if (version_ == 2 && ours != "zero3" && ours != "shard_grad_op") {
      return error(Code::kInvalidArgument,
                   "`fsdp={}` is only available with FSDP1. Set `fsdp_config['version'] = 1` to "
                   "use it",
                   word);
    }
    return Claim{"fsdp", to_value(ours), word};
  }

  // FSDP2: reshard_after_forward, a boolean.
  Result<std::optional<Claim>> read_reshard() const {
    bool reshard = true;
    if (const auto* value = find("reshard_after_forward")) {
      const auto flag = read_bool(*value);
      if (!flag.ok()) {
        return error(Code::kInvalidArgument,
                     "{} set to {}. This is not supported with FSDP2, please set to a `bool`",
                     source_.shown("reshard_after_forward"), value_text(*value).substr(0, 40));
      }
      reshard = *flag;
    }
    const std::string ours = reshard ? "zero3" : "shard_grad_op";
    if (const auto* value = find("sharding_strategy"); value && !source_.from_environment) {
      if (strategy_of(*value) != ours) {
        return error(Code::kInvalidArgument,
                     "{}={} belongs to FSDP1 and the version is 2, where {} decides ({}); leave "
                     "one of them out",
                     source_.shown("sharding_strategy"), value_text(*value).substr(0, 40),
                     source_.shown("reshard_after_forward"), reshard);
      }
    }
    if (!find("reshard_after_forward")) {
      if (source_.words && !source_.words->strategy.empty()) return std::optional<Claim>();
      return std::optional(Claim{source_.shown("version"), to_value(ours), "2"});
    }
    return std::optional(claim("reshard_after_forward", ours));
  }

  // FSDP1: sharding_strategy; transformers also takes reshard_after_forward for its name.
  Result<std::optional<Claim>> read_strategy_name() const {
    std::optional<Claim> out;
    if (const auto* value = find("sharding_strategy")) {
      const auto ours = strategy_of(*value);
      if (!ours) return no_strategy("sharding_strategy", *value);
      out = claim("sharding_strategy", *ours);
    }
    const auto* reshard = find("reshard_after_forward");
    if (!reshard) return out;
    if (const auto flag = read_bool(*reshard); flag.ok() && !reshard->is_number()) {
      // Without a version transformers 5 means FSDP2, and true is what accelerate writes for both.
      if (version_ == 0 && !out && source_.words) {
        return std::optional(claim("reshard_after_forward", *flag ? "zero3" : "shard_grad_op"));
      }
      if (*flag || source_.from_environment) return out;
      return error(Code::kInvalidArgument,
                   "{}=false belongs to FSDP2 and the version is 1, where {} decides; use {}: "
                   "SHARD_GRAD_OP, or version 2",
                   source_.shown("reshard_after_forward"), source_.shown("sharding_strategy"),
                   source_.shown("sharding_strategy"));
    }
    const auto ours = strategy_of(*reshard);
    if (!ours) return no_strategy("reshard_after_forward", *reshard);
    if (out && value_text(out->value) != *ours) {
      return error(Code::kInvalidArgument,
                   "{}={} and {}={} disagree about the strategy; leave one "
                   "of them out",
                   out->key, out->shown, source_.shown("reshard_after_forward"),
                   value_text(*reshard).substr(0, 40));
    }
    return std::optional(claim("reshard_after_forward", *ours));
  }

  Status no_strategy(std::string_view name, const json::Value& value) const {
    const std::vector<std::string> names = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD",
                                            "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
    const auto text = value_text(value).substr(0, 40);
    return error(Code::kInvalidArgument, "{}: '{}' is no valid value; one of {}{}",
                 source_.shown(std::string(name)), text, join_words(names),
                 did_you_mean(text, names));
  }

  Status read_format(FsdpSettings& out) const {
    const auto* value = find("state_dict_type");
    if (!value) return {};
    const auto type = lower_text(*value);
    if (type == "local_state_dict") {
      return error(Code::kUnsupported,
                   "{}={} is not supported: it could be loaded at one world size only; use "
                   "SHARDED_STATE_DICT",
                   source_.shown("state_dict_type"), value_text(*value));
    }
    out.checkpoint_format =
        claim("state_dict_type", type == "sharded_state_dict" ? "sharded" : "hf");
    return {};
  }

  Status read_offload(FsdpSettings& out) const {
    if (source_.words && source_.words->offload)
      out.offload = Claim{source_.shown(""), "parameters", "offload"};
    for (const auto* name : {"offload_params", "cpu_offload"}) {
      const auto* value = find(name);
      if (!value) continue;
      const auto on = read_bool(*value);
      if (!on.ok()) return on.status().prefixed(source_.shown(name));
      if (*on && !out.offload) out.offload = claim(name, "parameters");
    }
    return {};
  }

  Status check_prefetch() const {
    const auto* value = find("forward_prefetch");
    if (!value || version_ != 2) return {};
    const auto on = read_bool(*value);
    if (!on.ok()) return on.status().prefixed(source_.shown("forward_prefetch"));
    if (!*on) return {};
    return error(Code::kInvalidArgument,
                 "{}: forward_prefetch is not yet implemented in FSDP2, set to None or use "
                 "`fsdp_version=1`",
                 source_.shown("forward_prefetch"));
  }

  const json::Object& settings_;
  const FsdpSource& source_;
  std::int64_t version_ = 0;
};

}  // namespace

const ForeignKeys& fsdp_keys() {
  static const ForeignKeys table = build_fsdp_keys();
  return table;
}

Result<std::optional<FsdpWords>> read_fsdp_words(const json::Value& value) {
  if (value.is_null()) return std::optional<FsdpWords>();
  if (const auto flag = read_bool(value); flag.ok()) {
    return *flag ? std::optional(FsdpWords()) : std::nullopt;
  }
  std::vector<std::string> words;
  for (const auto& part : TROUPE_TRY(read_text_list(value))) {
    for (const auto& word : split_words(part, ' ')) {
      if (!trim(word).empty()) words.emplace_back(trim(word));
    }
  }
  if (words.empty()) return std::optional<FsdpWords>();
  FsdpWords out;
  for (const auto& word : words) {
    if (word == "auto_wrap" || word == "true") continue;
    if (word == "offload") {
      out.offload = true;
      continue;
    }
    if (!strategy_of(to_value(word)) || word.size() == 1) {
      const std::vector<std::string> known = {
          "full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2",
          "no_shard",   "auto_wrap",     "offload"};
      return error(Code::kInvalidArgument, "Unknown `fsdp` option: {}; one of {}{}", word,
                   join_words(known), did_you_mean(word, known));
    }
    if (!out.strategy.empty() && out.strategy != word) {
      return error(Code::kInvalidArgument, "`--fsdp {}` is not compatible with `--fsdp {}`.",
                   out.strategy, word);
    }
    out.strategy = word;
  }
  return std::optional(out);
}

Result<FsdpSettings> read_fsdp(const json::Object& settings, const FsdpSource& source,
                               std::vector<KeyFact>& facts) {
  json::Object plain;
  std::map<std::string, std::string> written;  // without fsdp_ → as it stands
  for (const auto& member : settings) {
    std::string name(member.key());
    const auto as_written = name;
    if (name.starts_with("fsdp_")) name.erase(0, 5);
    if (plain.contains(name)) {
      return error(Code::kInvalidArgument, "{} stands there twice, with and without fsdp_",
                   source.shown(as_written));
    }
    written[name] = as_written;
    plain[name] = member.value();
  }
  FsdpSource named = source;
  named.shown = [&](const std::string& name) {
    const auto found = written.find(name);
    return source.shown(found == written.end() ? name : found->second);
  };
  TROUPE_RETURN_IF_ERROR(fsdp_keys().check(plain, named.shown));
  auto out = TROUPE_TRY(FsdpReader(plain, named).read());
  for (auto& fact : fsdp_keys().describe(plain, named.shown, source.origin)) {
    facts.push_back(std::move(fact));
  }
  return out;
}

}  // namespace troupe::train
