// Beside PyTorch on the same GPU in the same run: rates and memory of training, losses and
// gradients of small models.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/base/file_system.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/check.h"
#include "tools/gpu_check/device_model.h"
#include "tools/gpu_check/peer_program.h"
#include "tools/gpu_check/program_runs.h"
#include "train/cuda/device/memory_ledger.h"

namespace troupe::tools::gpu {
namespace {

constexpr double kMemoryShareBar = 0.8;

struct PeerCase {
  const char* mode;
  double speed_bar;  // times the peer's tokens/s
  double seconds;
  int limit_s;  // of the peer alone
};

// The least of how many times better than its bar each figure is: 1 meets both.
Check peer_rate_check(const PeerCase& peer_case) {
  return {
      .name = fmt::format("peer/hugging face {}", peer_case.mode),
      .what = fmt::format(
          "training of Qwen2.5-0.5B's shape in bf16, 16 rows of 1,024 tokens, beside Hugging Face "
          "and PyTorch ({}): at least {} × its tokens/s, at most {} × its memory",
          peer_case.mode, peer_case.speed_bar, kMemoryShareBar),
      .seconds = peer_case.seconds,
      .run = [peer_case](Bench& bench) -> Result<Figure> {
        const Runs runs = TROUPE_TRY(Runs::create(bench));
        const PeerProgram peer = TROUPE_TRY(PeerProgram::make(bench, runs.folder()));
        const bool small = bench.rehearsal();
        const RateShape shape{kQwenHalfB, 16};
        const RunSpec spec = rate_spec(bench, shape, kFastSettings);
        const std::int64_t before = TROUPE_TRY(runs.bytes_in_use());
        const std::string folder = TROUPE_TRY(runs.lay_out("peer", spec));
        // The same batch and as many steps. First: it may not be there.
        const json::Value theirs =
            TROUPE_TRY(peer.run({"rate", folder + "/model", peer_case.mode, peer.device(),
                                 std::to_string(small ? 2 : shape.rows), small ? "32" : "1024",
                                 small ? "1" : "3", small ? "1" : "8"},
                                std::chrono::seconds(peer_case.limit_s)));
        const RunRate ours = TROUPE_TRY(runs.rate(spec));
        const double rate = json::find_number(theirs, "tokens_per_s").value_or(0);
        if (!(rate > 0)) return error(Code::kDataLoss, "PyTorch's program tells no rate");
        const double speed = ours.tokens_per_s / rate;
        Figure figure{.value = speed / peer_case.speed_bar, .unit = "of the bars"};
        figure.text = fmt::format(
            "{:.0f} tokens/s beside {:.0f}: {:.2f} × (>= {}); its first step took {:.1f} s; {}",
            ours.tokens_per_s, rate, speed, peer_case.speed_bar,
            json::find_number(theirs, "first_step_s").value_or(0),
            json::find_string(theirs, "by").value_or("?"));
        // A CPU's memory is not told.
        if (small) return figure;
        const std::int64_t here =
            bytes_of(ours.device_bytes, train::kDeviceInUse) - ours.in_use_before;
        const std::int64_t there = json::find_integer(theirs, "in_use_bytes").value_or(0) - before;
        if (here <= 0 || there <= 0)
          return error(Code::kDataLoss, "{} bytes of ours and {} of PyTorch's are no memory", here,
                       there);
        const double share = static_cast<double>(here) / static_cast<double>(there);
        figure.value = std::min(figure.value, kMemoryShareBar / share);
        figure.bar = Figure::Bar::kAtLeast, figure.bar_value = 1;
        figure.text += fmt::format(
            "; {} of the device's memory beside {} ({} of them in tensors): {:.2f} × (<= {})",
            train::memory_size_text(here), train::memory_size_text(there),
            train::memory_size_text(json::find_integer(theirs, "allocated_bytes").value_or(0)),
            share, kMemoryShareBar);
        return figure;
      }};
}

constexpr std::int64_t kPeerRows = 2, kPeerLength = 40;

// What peer.py reads of a model.
json::Object peer_told_of(const NamedConfig& named, const train::ParameterLayout& layout,
                          const CountingBatch& batch, std::int64_t first_element) {
  json::Array tensors, ids;
  for (const train::ParameterInfo& parameter : layout.parameters()) {
    json::Array shape;
    for (const std::int64_t size : parameter.shape) shape.push_back(size);
    tensors.push_back(json::Object{{"name", parameter.name},
                                   {"at", first_element + layout.flat_offset(parameter)},
                                   {"shape", std::move(shape)}});
  }
  for (const std::int32_t id : batch.ids) ids.push_back(id);
  return {{"name", named.name},
          {"config", named.config.to_json()},
          {"rows", kPeerRows},
          {"ids", std::move(ids)},
          {"tensors", std::move(tensors)}};
}

// Padding has no gradient.
double norm_of(const std::vector<float>& gradients) {
  double squares = 0;
  for (const float g : gradients) squares += static_cast<double>(g) * g;
  return std::sqrt(squares);
}

Result<Figure> check_peer_losses(Bench& bench) {
  const WorkFolder folder = TROUPE_TRY(WorkFolder::create());
  const PeerProgram peer = TROUPE_TRY(PeerProgram::make(bench, folder.path()));
  struct Ours {
    std::string name;
    double loss, norm;
  };
  std::vector<Ours> ours;
  json::Array models;
  std::vector<float> parameters;
  for (const NamedConfig& named : small_models(bench.rehearsal())) {
    Gpu* gpu = TROUPE_TRY(bench.gpu());
    const auto model =
        TROUPE_TRY(gpu_model(named.config, {.rows = kPeerRows, .length = kPeerLength}, *gpu));
    const std::vector<float> start = initial_parameters(named.config, model->layout(), 3);
    const CountingBatch batch(kPeerRows, kPeerLength, named.config.vocab_size, 1, false);
    TROUPE_RETURN_IF_ERROR(model->set_parameters(start, 0));
    TROUPE_RETURN_IF_ERROR(model->zero_gradients());
    // The loss is the mean over the targets.
    const float scale = 1.0f / static_cast<float>(kPeerRows * (kPeerLength - 1));
    const train::LossSum sum = TROUPE_TRY(model->forward_backward(batch.micro(), scale));
    ours.push_back({named.name, sum.loss_sum / static_cast<double>(sum.target_count),
                    norm_of(TROUPE_TRY(model->gradients()))});
    models.push_back(
        peer_told_of(named, model->layout(), batch, static_cast<std::int64_t>(parameters.size())));
    parameters.insert(parameters.end(), start.begin(), start.end());
  }
  PosixFileSystem files;
  TROUPE_RETURN_IF_ERROR(
      write_file_atomically(files, folder.path() + "/models.json", json::write(models)));
  TROUPE_RETURN_IF_ERROR(
      write_file_atomically(files, folder.path() + "/parameters.bin",
                            std::string(reinterpret_cast<const char*>(parameters.data()),
                                        parameters.size() * sizeof(float))));
  const json::Value theirs =
      TROUPE_TRY(peer.run({"losses", folder.path(), peer.device()}, std::chrono::seconds(60)));
  const json::Value* told = json::find(theirs, "models");
  if (!told || !told->is_array() || told->get_array().size() != ours.size())
    return error(Code::kDataLoss, "PyTorch's program does not tell all losses");
  Figure figure{.unit = "relative difference", .bar = Figure::Bar::kAtMost, .bar_value = 1e-4};
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const json::Value& one = told->get_array()[i];
    const double loss = json::find_number(one, "loss").value_or(NAN);
    const double norm = json::find_number(one, "norm").value_or(NAN);
    for (const auto& [a, b] : {std::pair{ours[i].loss, loss}, {ours[i].norm, norm}}) {
      const double difference = std::abs(a - b) / std::abs(b);
      figure.value = std::max(figure.value, std::isfinite(difference) ? difference : 1e30);
    }
    figure.text += fmt::format("{}: loss {:.6f} ({:.6f}), gradients' norm {:.6f} ({:.6f}); ",
                               ours[i].name, ours[i].loss, loss, ours[i].norm, norm);
  }
  figure.text += json::find_string(theirs, "by").value_or("?");
  return figure;
}

}  // namespace

void add_peer_checks(std::vector<Check>& checks) {
  checks.push_back(
      {"peer/losses",
       "losses and gradients' norms of small Llama, Qwen2.5, GPT-2 and Qwen3 models in "
       "fp32 against PyTorch's, from the same parameters and tokens",
       12, check_peer_losses});
  checks.push_back(peer_rate_check({"eager", 1.5, 30, 60}));
}

void add_compiled_peer_checks(std::vector<Check>& checks) {
  checks.push_back(peer_rate_check({"compiled", 1.15, 60, 120}));
}

}  // namespace troupe::tools::gpu
