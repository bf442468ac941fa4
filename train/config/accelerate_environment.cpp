// Reads the variables that `accelerate launch` puts into the environment.
#include <algorithm>

#include "runtime/base/suggest.h"
#include "runtime/base/text.h"
#include "train/config/accelerate.h"
#include "train/config/deepspeed.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

// A variable's text. Python's None and nothing at all count as not set.
std::optional<std::string> variable(const Environment& environment, const std::string& name) {
  const auto value = environment.get(name);
  if (!value) return std::nullopt;
  const auto text = std::string(trim(*value));
  if (text.empty() || upper_case(text) == "NONE") return std::nullopt;
  return text;
}

class EnvironmentReader {
 public:
  explicit EnvironmentReader(const Environment& environment) : environment_(environment) {
    out_.origin = "environment";
  }

  std::optional<AccelerateSettings> read(Problems& problems) {
    for (const auto& status : {refuse_others(), read_precision(), read_device(), read_sharding(),
                               read_mesh_axes(), read_steps()}) {
      if (!status.ok()) problems.add_named(status.code(), "environment", status.message());
    }
    if (!found_) return std::nullopt;
    return std::move(out_);
  }

 private:
  void fact(const std::string& name, const std::string& value, std::string note) {
    found_ = true;
    out_.facts.push_back({name, value, "environment", Treatment::kImplemented, std::move(note)});
  }

  Status refuse_others() const {
    if (!environment_.enabled("ACCELERATE_USE_MEGATRON_LM")) return {};
    return error(Code::kUnsupported,
                 "environment ACCELERATE_USE_MEGATRON_LM={} is not supported: Megatron is another "
                 "runtime; unset it",
                 *environment_.get("ACCELERATE_USE_MEGATRON_LM"));
  }

  Status read_precision() {
    const std::string name = "ACCELERATE_MIXED_PRECISION";
    const auto text = variable(environment_, name);
    if (!text) return {};
    if (*text == "no" || *text == "bf16" || *text == "fp16") {
      fact(name, *text, "what to compute in");
      out_.mixed_precision = Sourced<std::string>{*text, name};
      return {};
    }
    if (*text == "fp8") {
      return error(Code::kUnsupported,
                   "environment {}=fp8 is not supported: accelerate's settings of FP8 are of other "
                   "recipes; use bf16 here, and fp8: true in the run's own file",
                   name);
    }
    return error(Code::kInvalidArgument,
                 "environment {}={}: no valid value; one of no, bf16, fp16, fp8", name,
                 text->substr(0, 40));
  }

  // The launcher writes False where it is off.
  Status read_device() {
    const std::string name = "ACCELERATE_USE_CPU";
    if (!environment_.enabled(name)) return {};
    fact(name, *environment_.get(name), "trainers compute on CPUs (troupe.device=cpu)");
    out_.use_cpu_key = name;
    return {};
  }

  Status read_sharding() {
    const bool fsdp = environment_.enabled("ACCELERATE_USE_FSDP");
    const bool deepspeed = environment_.enabled("ACCELERATE_USE_DEEPSPEED");
    if (fsdp && deepspeed) {
      return error(
          Code::kInvalidArgument,
          "environment ACCELERATE_USE_FSDP and ACCELERATE_USE_DEEPSPEED are both on; unset "
          "one of them");
    }
    if (fsdp) return read_fsdp_variables();
    if (deepspeed) return read_deepspeed_variables();
    return {};
  }

  Status read_fsdp_variables() {
    fact("ACCELERATE_USE_FSDP", *environment_.get("ACCELERATE_USE_FSDP"), "shard as FSDP_… say");
    json::Object settings;
    for (const auto& path : fsdp_keys().paths()) {
      if (const auto text = variable(environment_, "FSDP_" + upper_case(path))) {
        settings[json_view(path)] = to_value(*text);
      }
    }
    const FsdpSource source{
        .shown = [](const std::string& path) { return "FSDP_" + upper_case(path); },
        .origin = "environment",
        .words = std::nullopt,
        .from_environment = true};
    auto read = read_fsdp(settings, source, out_.facts);
    if (!read.ok()) return read.status().prefixed("environment");
    out_.fsdp = std::move(*read);
    return {};
  }

  Status read_deepspeed_variables() {
    fact("ACCELERATE_USE_DEEPSPEED", *environment_.get("ACCELERATE_USE_DEEPSPEED"),
         "shard as ACCELERATE_DEEPSPEED_… say");
    json::Value devices[] = {"none", "none"};
    constexpr const char* kDevices[] = {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
                                        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"};
    for (std::size_t i = 0; i < std::size(kDevices); ++i) {
      const auto device = variable(environment_, kDevices[i]);
      if (!device) continue;
      fact(kDevices[i], *device, "what lies in the host's memory (troupe.offload)");
      if (!TROUPE_TRY(
              reads_offload_device(to_value(*device), fmt::format("environment {}", kDevices[i]))))
        continue;
      devices[i] = "cpu";
      out_.offload_key = kDevices[i];
    }
    const std::string file = "ACCELERATE_DEEPSPEED_CONFIG_FILE";
    const std::string stage = "ACCELERATE_DEEPSPEED_ZERO_STAGE";
    if (const auto path = variable(environment_, file)) {
      if (!out_.offload_key.empty()) {
        return error(
            Code::kInvalidArgument,
            "environment {} is not read where {} is given; put it into that file, or unset "
            "one of them",
            out_.offload_key, file);
      }
      fact(file, *path, "DeepSpeed's configuration");
      out_.deepspeed = Sourced<json::Value>{to_value(*path), file};
      return {};
    }
    // accelerate's default.
    const auto number = variable(environment_, stage).value_or("2");
    fact(stage, number, "what is sharded over the trainers");
    out_.deepspeed =
        Sourced<json::Value>{deepspeed_of_stage(to_value(number), devices[0], devices[1]), stage};
    return {};
  }

  Status read_mesh_axes() {
    const std::string prefix = "PARALLELISM_CONFIG_";
    MeshAxes mesh;
    std::string last;
    for (const auto* axis : {"DP_REPLICATE", "DP_SHARD", "TP", "CP", "SP", "PP", "EP"}) {
      const auto name = prefix + axis + "_SIZE";
      const auto text = variable(environment_, name);
      if (!text) continue;
      const auto size = read_integer(to_value(*text));
      if (!size.ok() || *size < 1 || *size > (1 << 16)) {
        return error(Code::kInvalidArgument, "environment {}: '{}' is no size of an axis", name,
                     text->substr(0, 40));
      }
      const std::string plain = lower_case(axis);
      const auto reason = refused_axis(plain);
      if (reason && *size > 1) {
        return error(Code::kUnsupported, "environment {}={} is not supported: {}", name, *size,
                     *reason);
      }
      fact(name, *text, reason ? "1 asks for nothing" : "the mesh (troupe.mesh)");
      if (reason) continue;
      (plain == "dp_shard" ? mesh.shard : mesh.replicate) = *size;
      last = name;
    }
    if (last.empty()) return {};
    mesh.replicate = std::max<std::int64_t>(1, mesh.replicate);
    mesh.shard = std::max<std::int64_t>(1, mesh.shard);
    out_.mesh = Sourced<MeshAxes>{mesh, last};
    return {};
  }

  Status read_steps() {
    const std::string steps = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";
    if (const auto text = variable(environment_, steps); text && *text != "auto") {
      const auto number = read_integer(to_value(*text));
      if (!number.ok() || *number < 1 || *number > (1 << 20)) {
        return error(Code::kInvalidArgument, "environment {}: '{}' is no number of micro-batches",
                     steps, text->substr(0, 40));
      }
      fact(steps, *text, "micro-batches of a step, where the training configuration does not say");
      out_.gradient_accumulation_steps = Sourced<std::int64_t>{*number, steps};
    }
    const std::string clipping = "ACCELERATE_GRADIENT_CLIPPING";
    if (const auto text = variable(environment_, clipping); text && *text != "auto") {
      const auto number = read_number(to_value(*text));
      if (!number.ok() || *number < 0) {
        return error(Code::kInvalidArgument, "environment {}: '{}' is no norm", clipping,
                     text->substr(0, 40));
      }
      fact(clipping, *text, "global norm to clip to, where max_grad_norm is not given");
      out_.gradient_clipping = Sourced<double>{*number, clipping};
    }
    return {};
  }

  const Environment& environment_;
  AccelerateSettings out_;
  bool found_ = false;
};

}  // namespace

std::optional<AccelerateSettings> read_accelerate_environment(const Environment& environment,
                                                              Problems& problems) {
  return EnvironmentReader(environment).read(problems);
}

}  // namespace troupe::train
