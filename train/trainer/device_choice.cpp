#include "train/trainer/device_choice.h"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::train {
namespace {

// Why GPUs cannot be used; ok where they can.
Status against_gpus(const TrainConfig& config, int trainers, const DeviceOffer& offer) {
  if (!offer.usable.ok()) return offer.usable;
  if (offer.gpus == 0) {
    return error(Code::kUnavailable, "{} a GPU",
                 offer.nodes == 1 ? "the node does not offer" : "no node offers");
  }
  const int sharing = trainers_per_gpu(config);
  if (offer.gpus * sharing < trainers) {
    const std::string need =
        sharing == 1 ? "a GPU each" : fmt::format("a GPU for every {}", sharing);
    return error(Code::kResourceExhausted,
                 "{} trainers need {}, and the nodes offer {}: lower troupe.workers, add nodes, or "
                 "let trainers share GPUs (troupe.gpus_per_worker)",
                 trainers, need, offer.gpus);
  }
  return {};
}

}  // namespace

int trainers_per_gpu(const TrainConfig& config) {
  // Shares are exact to a ten-thousandth, as the scheduler counts them: a third three times fits.
  return std::max(1, static_cast<int>(1.0 / config.troupe.gpus_per_worker + 1e-3));
}

GraphOptions::Use graph_use(const TrainConfig& config) {
  if (config.troupe.operator_times || config.troupe.cuda_graphs == "false")
    return GraphOptions::Use::kNever;
  return config.troupe.cuda_graphs == "true" ? GraphOptions::Use::kAlways
                                             : GraphOptions::Use::kWhereFaster;
}

Result<DeviceDecision> decide_device(const TrainConfig& config, int trainers,
                                     const DeviceOffer& offer) {
  const std::string& wanted = config.troupe.device;
  const bool cpu = wanted == "cpu";
  const Status against = cpu ? Status() : against_gpus(config, trainers, offer);
  if (wanted == "cuda" && !against.ok()) {
    const bool has_way_out = against.message().find("troupe.device=cpu") != std::string::npos;
    const bool none = offer.usable.ok() && offer.gpus == 0;
    return Status(against.code(),
                  fmt::format("troupe.device=cuda: {}{}{}", against.message(),
                              none ? ": the driver shows none, or CUDA_VISIBLE_DEVICES or "
                                     "--num-gpus leave none"
                                   : "",
                              has_way_out ? "" : "; or use troupe.device=cpu"));
  }
  if (!cpu && against.ok()) {
    if (config.model.compute == Precision::kFloat16)
      return error(Code::kUnsupported,
                   "fp16 is not there on GPUs; use bf16: true, or train on CPUs (use_cpu: true)")
          .with("key", "fp16");
    return DeviceDecision{.on_gpus = true, .notice = ""};
  }
  if (config.model.tf32.value_or(false)) {
    return error(Code::kInvalidArgument,
                 "tf32: true is of NVIDIA's GPUs, and the run is on CPUs{}; use tf32: false",
                 cpu ? " (troupe.device=cpu)" : fmt::format(" ({})", against.message()))
        .with("key", "tf32");
  }
  if (config.model.fp8) {
    return error(Code::kInvalidArgument,
                 "fp8: true is of NVIDIA's GPUs, and the run is on CPUs{}; use bf16: true without "
                 "fp8",
                 cpu ? " (troupe.device=cpu)" : fmt::format(" ({})", against.message()))
        .with("key", "fp8");
  }
  if (config.troupe.cuda_graphs == "true") {
    return error(Code::kInvalidArgument,
                 "troupe.cuda_graphs=true is of NVIDIA's GPUs, and the run is on CPUs{}; use "
                 "troupe.cuda_graphs=auto",
                 cpu ? " (troupe.device=cpu)" : fmt::format(" ({})", against.message()))
        .with("key", "troupe.cuda_graphs");
  }
  std::string notice;
  if (!cpu) notice = fmt::format("the run is on CPUs (troupe.device=auto): {}", against.message());
  if (config.sharding.offload != OffloadChoice::kNone) {
    notice += fmt::format("{}offload has no effect on CPUs: everything lies in the host's memory",
                          notice.empty() ? "" : "; ");
  }
  if (!notice.empty()) notice.insert(0, "notice: ");
  return DeviceDecision{.on_gpus = false, .notice = notice};
}

}  // namespace troupe::train
