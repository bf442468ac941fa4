#include "train/config/launch.h"

#include <algorithm>
#include <charconv>

#include "runtime/base/suggest.h"
#include "train/config/launch_variables.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kNodesMax = 1 << 16;
constexpr std::int64_t kEndpointPort = 29400;  // torchrun's, where an endpoint has none

class LaunchReader {
 public:
  LaunchReader(const Environment& environment, Problems& problems)
      : environment_(environment), problems_(problems) {}

  LaunchEnvironment read() {
    read_nodes();
    const auto rank = number({"NODE_RANK", "PET_NODE_RANK"}, 0, kNodesMax - 1);
    out_.node_rank = rank.value_or(0);
    out_.node_rank_given = rank.has_value();
    if (const auto id = text({"RDZV_ID", "PET_RDZV_ID"})) {
      out_.rendezvous = id->value;
      out_.rendezvous_from = id->name;
    }
    // torchrun counts for itself what is named so.
    if (const auto given = text({"PET_NPROC_PER_NODE"});
        given && given->value != "auto" && given->value != "gpu") {
      out_.nproc_per_node = number({"NPROC_PER_NODE", "PET_NPROC_PER_NODE"}, 1, 4096);
    } else {
      out_.nproc_per_node = number({"NPROC_PER_NODE"}, 1, 4096);
    }
    if (const auto given = text({"MASTER_ADDR", "PET_MASTER_ADDR"}))
      out_.master_addr = given->value;
    out_.master_port = number({"MASTER_PORT", "PET_MASTER_PORT"}, 1, 65535);
    read_endpoint();
    out_.max_restarts = number({"MAX_RESTARTS", "PET_MAX_RESTARTS"}, 0, 1'000'000);
    out_.wait_timeout_s = number({"AXOLOTL_NCCL_TIMEOUT"}, 1, std::int64_t{1} << 32);
    if (const auto given = text({"TROUPE_ADDRESS"})) out_.address = given->value;
    if (const auto given = text({"CUDA_VISIBLE_DEVICES"})) out_.visible_gpus = given->value;
    return std::move(out_);
  }

 private:
  using Names = std::initializer_list<const char*>;
  struct Text {
    const char* name;
    std::string value;
  };

  void wrong(const char* name, std::string message, Code code = Code::kInvalidArgument) {
    problems_.add_named(code, name, message);
  }

  // The first of the names that is set. Another one that says something else is a problem.
  std::optional<Text> text(Names names) {
    std::optional<Text> found;
    for (const auto* name : names) {
      const auto value = environment_.get(name);
      if (!value || trim(*value).empty()) continue;
      if (!found) {
        found = Text{name, std::string(trim(*value))};
      } else if (found->value != trim(*value)) {
        wrong(name, fmt::format("environment {}={} and {}={} disagree; unset one of them",
                                found->name, found->value, name, trim(*value)));
      }
    }
    return found;
  }

  std::optional<std::int64_t> number(Names names, std::int64_t least, std::int64_t most) {
    const auto found = text(names);
    if (!found) return std::nullopt;
    return number_in(found->name, found->value, least, most);
  }

  std::optional<std::int64_t> number_in(const char* name, std::string_view text, std::int64_t least,
                                        std::int64_t most) {
    std::int64_t value = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (ec != std::errc() || end != text.data() + text.size()) {
      wrong(name, fmt::format("environment {}: '{}' is no whole number", name, text));
    } else if (value < least || value > most) {
      wrong(name,
            fmt::format("environment {}: {} is not between {} and {}", name, value, least, most));
    } else {
      return value;
    }
    return std::nullopt;
  }

  // torchrun's HOST[:PORT] of node 0, with an IPv6 address in brackets. On one node it is its own
  // affair.
  void read_endpoint() {
    const auto given = text({"PET_RDZV_ENDPOINT"});
    if (!given || out_.node_count() == 1) return;
    std::string_view host = given->value;
    const auto bracket = host.starts_with('[') ? host.find(']') : std::string_view::npos;
    const auto colon = host.find(':', bracket == std::string_view::npos ? 0 : bracket);
    std::optional<std::int64_t> port = kEndpointPort;
    if (colon != std::string_view::npos) {
      port = number_in(given->name, host.substr(colon + 1), 1, 65535);
      host = host.substr(0, colon);
    }
    if (bracket != std::string_view::npos) host = host.substr(1, bracket - 1);
    if (host.empty())
      wrong(given->name, fmt::format("environment {}={}: no address before the port; write "
                                     "HOST:PORT",
                                     given->name, given->value));
    const auto same = [&](const char* name, const std::string& other, const std::string& own) {
      if (other != own)
        wrong(given->name, fmt::format("environment {}={} and {}={} disagree; unset one of them",
                                       name, other, given->name, given->value));
    };
    if (out_.master_addr) same("MASTER_ADDR", *out_.master_addr, std::string(host));
    if (out_.master_port && port)
      same("MASTER_PORT", std::to_string(*out_.master_port), std::to_string(*port));
    out_.master_addr = std::string(host);
    out_.master_port = port;
  }

  // NNODES, or the numbers between which it may change.
  void read_nodes() {
    auto least = number({"MIN_NNODES"}, 1, kNodesMax);
    auto most = number({"MAX_NNODES"}, 1, kNodesMax);
    std::string shown = "MIN_NNODES and MAX_NNODES";
    const auto pet = text({"PET_NNODES"});
    const auto colon = pet ? pet->value.find(':') : std::string::npos;
    if (colon != std::string::npos) {
      const std::string_view range = pet->value;
      least = number_in("PET_NNODES", range.substr(0, colon), 1, kNodesMax);
      most = number_in("PET_NNODES", range.substr(colon + 1), 1, kNodesMax);
      shown = "PET_NNODES";
      out_.nnodes = number({"NNODES"}, 1, kNodesMax);
    } else {
      out_.nnodes = number({"NNODES", "PET_NNODES"}, 1, kNodesMax);
    }
    if (!least && !most) return;
    if (!least || !most) {
      const char* const there = least ? "MIN_NNODES" : "MAX_NNODES";
      const char* const missing = least ? "MAX_NNODES" : "MIN_NNODES";
      // PET_NNODES' halves were refused one by one.
      if (colon == std::string::npos && !problems_.has(missing)) {
        wrong(there,
              fmt::format("environment {} says nothing without {}; use NNODES", there, missing));
      }
    } else if (*least > *most) {
      wrong("MIN_NNODES", fmt::format("environment {}: {} is more than {}", shown, *least, *most));
    } else if (out_.nnodes && (*out_.nnodes < *least || *out_.nnodes > *most)) {
      wrong("NNODES", fmt::format("environment NNODES={} and {} ({}) disagree; unset one of them",
                                  *out_.nnodes, shown,
                                  *least == *most ? std::to_string(*least)
                                                  : fmt::format("{} to {}", *least, *most)));
    } else {
      out_.nnodes = most;
      if (*least < *most) out_.nodes_min = least;
      out_.nodes_from = colon == std::string::npos
                            ? fmt::format("MIN_NNODES={} and MAX_NNODES={}", *least, *most)
                            : "PET_NNODES=" + pet->value;
    }
  }

  const Environment& environment_;
  Problems& problems_;
  LaunchEnvironment out_;
};

}  // namespace

LaunchEnvironment read_launch_environment(const Environment& environment, Problems& problems) {
  return LaunchReader(environment, problems).read();
}

void check_launch(const LaunchEnvironment& launch, const TrainConfig& config,
                  const Environment& environment, Problems& problems) {
  if (launch.node_rank >= launch.node_count() && !problems.has("NNODES")) {
    problems.add_named(Code::kInvalidArgument, "NODE_RANK",
                       fmt::format("environment NODE_RANK: {} is not below NNODES, which is {}",
                                   launch.node_rank, launch.node_count()));
  }
  // Each of the two alone first: their product might not be held.
  const std::int64_t per_node = launch.nproc_per_node.value_or(1);
  if (launch.node_count() > kTrainersMax || per_node > kTrainersMax ||
      launch.node_count() * per_node > kTrainersMax) {
    problems.add_named(Code::kInvalidArgument, "NNODES",
                       fmt::format("environment NNODES={} and NPROC_PER_NODE={}: a run has at most "
                                   "{} trainers",
                                   launch.node_count(), per_node, kTrainersMax));
  }
  if (launch.numbered_on_arrival() && !resolve_address(config, launch) &&
      (!launch.master_addr || !launch.master_port)) {
    problems.add_named(
        Code::kInvalidArgument, launch.rendezvous_from,
        fmt::format("environment {}={}: {} nodes meet at MASTER_ADDR and MASTER_PORT; set "
                    "both, to the same on all of them (the one at MASTER_ADDR is node 0)",
                    launch.rendezvous_from, *launch.rendezvous, launch.node_count()));
  }
  if (launch.elastic() && !launch.rendezvous) {
    problems.add_named(
        Code::kInvalidArgument, "MIN_NNODES",
        fmt::format(
            "environment {}: nodes that come and go need RDZV_ID, MASTER_ADDR and "
            "MASTER_PORT (torchrun's PET_RDZV_ID and PET_RDZV_ENDPOINT say the same), equal "
            "on all of them; or use NNODES",
            launch.nodes_from));
  }
  if (launch.elastic() && resolve_address(config, launch)) {
    problems.add_named(
        Code::kUnsupported, "MIN_NNODES",
        fmt::format("environment {}: on a running cluster a training keeps its number of trainers; "
                    "unset that",
                    launch.nodes_from));
  }
  if (!launch.gpu_ids_key.empty() && resolve_address(config, launch)) {
    problems.add_named(
        Code::kInvalidArgument, "troupe.accelerate_config",
        fmt::format("{}={} names GPUs of this machine, and trainers run on the nodes of a running "
                    "cluster; start those with CUDA_VISIBLE_DEVICES, and use gpu_ids: all",
                    launch.gpu_ids_key, *launch.visible_gpus));
  }
  check_one_of_several(environment, launch, problems);
}

WorldSize resolve_world_size(const TrainConfig& config, const LaunchEnvironment& launch,
                             std::int64_t gpu_count) {
  if (config.troupe.workers) return {*config.troupe.workers, "troupe.workers"};
  if (config.launch.ray_num_workers) return {*config.launch.ray_num_workers, "ray_num_workers"};
  if (launch.nnodes || launch.nproc_per_node) {
    const auto per_node = launch.nproc_per_node.value_or(std::max<std::int64_t>(1, gpu_count));
    return {launch.node_count() * per_node, launch.processes_from};
  }
  if (gpu_count > 0) return {gpu_count, "GPUs of this machine"};
  return {1, "default"};
}

std::int64_t resolve_threads_per_worker(const TrainConfig& config, std::int64_t cores,
                                        std::int64_t local_workers) {
  if (config.troupe.threads_per_worker) return *config.troupe.threads_per_worker;
  return std::max<std::int64_t>(1, cores / std::max<std::int64_t>(1, local_workers));
}

std::optional<std::string> resolve_address(const TrainConfig& config,
                                           const LaunchEnvironment& launch) {
  return config.troupe.address ? config.troupe.address : launch.address;
}

}  // namespace troupe::train
