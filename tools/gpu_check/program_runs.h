#pragma once
// What checks that run `troupe` share: models' shapes, settings, runs one after another.

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/train_program.h"

namespace troupe::tools::gpu {

// How long a program is waited for.
inline constexpr auto kRunLimit = std::chrono::seconds(120);

// Of seconds.
inline constexpr LlamaShape kSmallShape{.hidden = 64,
                                        .inner = 160,
                                        .layers = 2,
                                        .heads = 4,
                                        .key_heads = 2,
                                        .vocabulary = 320,
                                        .positions = 256};
inline constexpr LlamaShape kQwenHalfB{.hidden = 896,
                                       .inner = 4864,
                                       .layers = 24,
                                       .heads = 14,
                                       .key_heads = 2,
                                       .vocabulary = 151936,
                                       .positions = 4096,
                                       .qwen2 = true};
inline constexpr LlamaShape kQwen1B{.hidden = 1536,
                                    .inner = 8960,
                                    .layers = 28,
                                    .heads = 12,
                                    .key_heads = 2,
                                    .vocabulary = 151936,
                                    .positions = 4096,
                                    .qwen2 = true};
inline constexpr LlamaShape kQwen7B{.hidden = 3584,
                                    .inner = 18944,
                                    .layers = 28,
                                    .heads = 28,
                                    .key_heads = 4,
                                    .vocabulary = 152064,
                                    .positions = 4096,
                                    .tied = false,
                                    .qwen2 = true};

// Of kSmallShape, with micro-batches that are the same whatever the number of ranks.
std::string small_settings(int workers, const std::string& strategy, bool bf16);

// A model whose rate is measured, with so many rows of 1,024 tokens a step.
struct RateShape {
  LlamaShape shape;
  int rows = 1;
  bool pure_bf16 = false;  // its state, too
};
inline constexpr RateShape kRateHalfB{kQwenHalfB, 32};
inline constexpr RateShape kRate1B{kQwen1B, 16};
// In fp32 its state alone would take 122 GB.
inline constexpr RateShape kRate7B{kQwen7B, 8, true};
// The run of a rate, of one rank, in bf16; in a rehearsal of a small model. Settings besides.
RunSpec rate_spec(const Bench& bench, const RateShape& rate, const std::string& settings);
// As a user sets it who wants speed: there is memory to keep everything, and sums need no order.
inline constexpr const char* kFastSettings =
    "troupe.activation_checkpointing: none\ntroupe.deterministic: off\n";
// Runs one after another in a folder.
class Runs {
 public:
  // The device's memory is theirs. kUnsupported: the bench knows no program.
  static Result<Runs> create(Bench& bench);

  Result<TrainProgram> start(const std::string& name, const RunSpec& spec) const;
  // To its end: of a small model.
  Result<TrainProgram> run(const std::string& name, const RunSpec& spec) const;
  // The rate of such a run, of so many steps behind those that warm up; it is ended then. What was
  // found once is not measured again.
  Result<RunRate> rate(const RunSpec& spec) const;
  // The files of a run that nobody starts. Gives their folder.
  Result<std::string> lay_out(const std::string& name, const RunSpec& spec) const {
    return TrainProgram::lay_out(folder_.path(), name, spec);
  }
  // `troupe plan --json` of such a run: what is said of the configured strategy.
  Result<json::Value> plan(const std::string& name, const RunSpec& spec) const;
  // Bytes of the device that are taken, once they do not fall any more; this process's context
  // among them.
  Result<std::int64_t> bytes_in_use() const;
  const std::string& folder() const { return folder_.path(); }

 private:
  Runs(Bench& bench, std::string program, WorkFolder folder)
      : bench_(&bench), program_(std::move(program)), folder_(std::move(folder)) {}
  Result<std::map<std::string, std::string>> environment() const;

  Bench* bench_;
  std::string program_;
  WorkFolder folder_;
};

// The part of that name; 0 where it is not told.
std::int64_t bytes_of(const std::vector<train::NamedBytes>& parts, std::string_view name);

}  // namespace troupe::tools::gpu
