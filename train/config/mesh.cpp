#include "train/config/mesh.h"

#include "runtime/base/suggest.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kAxisMax = 1 << 16;

Status wrong_mesh(const json::Value& value) {
  return error(Code::kInvalidArgument,
               "expected REPLICATE,SHARD as in 2,4, or dp_replicate=2,dp_shard=4, found {}",
               json::write(value).substr(0, 60));
}

Result<std::int64_t> read_axis(const json::Value& value) {
  const auto size = TROUPE_TRY(read_integer(value));
  if (size < 1 || size > kAxisMax) {
    return error(Code::kInvalidArgument, "an axis of {} is not between 1 and {}", size, kAxisMax);
  }
  return size;
}

// One axis by its name.
Status set_axis(MeshAxes& mesh, std::string_view name, const json::Value& value) {
  const auto size = TROUPE_TRY(read_axis(value));
  auto plain = name;
  if (plain.ends_with("_size")) plain.remove_suffix(5);
  if (plain == "dp_replicate") {
    mesh.replicate = size;
  } else if (plain == "dp_shard") {
    mesh.shard = size;
  } else if (const auto reason = refused_axis(plain)) {
    if (size > 1)
      return error(Code::kUnsupported, "{}={} is not supported: {}", name, size, *reason);
  } else {
    return error(Code::kInvalidArgument, "'{}' is no axis; one of dp_replicate, dp_shard{}", name,
                 did_you_mean(name, {"dp_replicate", "dp_shard"}));
  }
  return {};
}

}  // namespace

std::optional<std::string> refused_axis(std::string_view name) {
  if (name.ends_with("_size")) name.remove_suffix(5);
  struct Axis {
    std::string_view name;
    std::string_view long_name;
    std::string_view meaning;
  };
  constexpr Axis kAxes[] = {{"tp", "tensor_parallel", "tensor"},
                            {"cp", "context_parallel", "context"},
                            {"sp", "sequence_parallel", "sequence"},
                            {"pp", "pipeline_parallel", "pipeline"},
                            {"ep", "expert_parallel", "expert"}};
  for (const auto& axis : kAxes) {
    if (name == axis.name || name == axis.long_name) {
      return fmt::format("{} parallelism comes later; use 1 and more trainers on dp_shard",
                         axis.meaning);
    }
  }
  return std::nullopt;
}

Result<MeshAxes> read_mesh(const json::Value& value) {
  MeshAxes mesh;
  if (value.is_null()) return mesh;
  if (const auto* object = value.if_object()) {
    for (const auto& member : *object) {
      TROUPE_RETURN_IF_ERROR(set_axis(mesh, std::string(member.key()), member.value()));
    }
  } else {
    const auto parts = value.is_array() || value.is_string()
                           ? read_text_list(value)
                           : Result<std::vector<std::string>>(wrong_mesh(value));
    if (!parts.ok() || parts->empty()) return wrong_mesh(value);
    const bool named = parts->front().find_first_of("=:") != std::string::npos;
    if (!named && parts->size() != 2) return wrong_mesh(value);
    for (const auto& part : *parts) {
      const auto sign = part.find_first_of("=:");
      if (named != (sign != std::string::npos)) return wrong_mesh(value);
      if (named) {
        TROUPE_RETURN_IF_ERROR(set_axis(mesh, trim(std::string_view(part).substr(0, sign)),
                                        to_value(part.substr(sign + 1))));
      }
    }
    if (!named) {
      const auto replicate = read_axis(to_value((*parts)[0]));
      const auto shard = read_axis(to_value((*parts)[1]));
      if (!replicate.ok() || !shard.ok()) {
        return error(Code::kInvalidArgument, "{}",
                     (replicate.ok() ? shard : replicate).status().message());
      }
      mesh = {*replicate, *shard};
    }
  }
  // One axis alone leaves the other at 1.
  if (mesh.replicate == 0 && mesh.shard > 0) mesh.replicate = 1;
  if (mesh.shard == 0 && mesh.replicate > 0) mesh.shard = 1;
  return mesh;
}

std::string canonical_strategy(std::string_view name) {
  // Synonyms of train/sharding's table.
  if (name == "no_shard" || name == "zero0") return "ddp";
  if (name == "fsdp" || name == "full_shard") return "zero3";
  if (name == "hybrid_shard") return "hsdp";
  if (name == "hybrid_shard_zero2") return "hsdp_zero2";
  return std::string(name);
}

std::string strategy_of_mesh(const MeshAxes& mesh) {
  if (mesh.shard <= 1) return "ddp";
  return mesh.replicate > 1 ? "hsdp" : "zero3";
}

std::string fsdp_strategy_on(const MeshAxes& mesh, std::string_view strategy) {
  if (mesh.replicate > 1 && mesh.shard > 1) {
    if (strategy == "zero3") return "hsdp";
    if (strategy == "shard_grad_op") return "hsdp_zero2";
  }
  return std::string(strategy);
}

std::optional<std::string> other_mesh_of(std::string_view strategy, const MeshAxes& mesh) {
  if (strategy == "hsdp" || strategy == "hsdp_zero2") return std::nullopt;
  if (strategy == "ddp") {
    return mesh.shard > 1 ? std::optional<std::string>("REPLICATE,1") : std::nullopt;
  }
  return mesh.replicate > 1 ? std::optional<std::string>("1,SHARD") : std::nullopt;
}

}  // namespace troupe::train
