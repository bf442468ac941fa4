#pragma once
// Files of lines that grow with the run: steps.jsonl, trainer_log.jsonl, events.jsonl (whose lines
// are in run_event.h).
//
// A line is written with one append. After a crash the last may be torn; opening for a resumed run
// drops it, and the lines of steps after the one resumed from, so that each step stands once.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/report/run_event.h"
#include "train/report/step_metrics.h"
#include "train/report/step_seconds.h"

namespace troupe::train {

inline constexpr const char* kStepsFile = "steps.jsonl";
inline constexpr const char* kTrainerLogFile = "trainer_log.jsonl";

// Appends lines to a file. Not thread-safe.
class LineFile {
 public:
  // Opens `path` at its end; a torn last line is dropped.
  static Result<LineFile> open(FileSystem& files, const std::string& path);
  // Opens `path` with the lines whose integer `step_key` is at most `step` (0: none, a new run);
  // the others and lines that are no JSON are dropped, by an atomic rewrite. Where the file's end
  // is sound and of a step that counts, no more of it is read: a long run's file is opened again at
  // every recovery.
  static Result<LineFile> open_at_step(FileSystem& files, const std::string& path,
                                       std::string_view step_key, std::int64_t step);
  // Lines that found no room wait for it, up to so many bytes; beyond that the oldest are lost.
  static constexpr std::size_t kUnwrittenBytesMax = 4u << 20;

  // Writes one line (its newline is added). Where that fails (full disk) the line is kept and
  // written before the next one, or by sync(); the error is returned once, by the first line that
  // has to wait.
  Status append(std::string_view line);
  // Writes what waits, and makes the lines so far durable: before a checkpoint that stands for them
  // is committed. What a full disk left of half-written lines is taken out then.
  Status sync();

 private:
  LineFile(FileSystem& files, std::string path) : files_(&files), path_(std::move(path)) {}
  Status rewrite(std::string_view before, std::string_view after, bool only_torn_lines);
  Status write_unwritten();
  Status drop_torn_lines();

  FileSystem* files_;
  std::string path_;
  std::unique_ptr<WritableFile> file_;
  bool torn_ = false;  // the file ends in the midst of a line
  bool has_torn_lines_ = false;
  std::deque<std::string> unwritten_;
  std::size_t unwritten_bytes_ = 0;
};

// Bytes of a device's memory that serve a purpose.
struct NamedBytes {
  std::string name;
  std::int64_t bytes = 0;
  friend bool operator==(const NamedBytes&, const NamedBytes&) = default;
};
// The last of StepRecord::device_bytes.
inline constexpr const char* kDeviceInUse = "in_use";

// One optimizer step. loss: mean over the step's target tokens of all ranks; grad_norm: before
// clipping; learning_rate: the one this step used; tokens: trained on in this step, all ranks.
struct StepRecord {
  std::int64_t step = 0;  // 1 for the first
  double loss = 0;        // may be NaN or infinite: a step's own loss is never hidden
  double grad_norm = 0;
  double learning_rate = 0;
  std::int64_t tokens = 0;
  // Where in the data the next step begins: samples of this epoch's order (with packing:
  // micro-batches) that are done with it. From one step to the next it tells what that trained on.
  // 0, 0: not known.
  std::int64_t epoch = 0;
  std::int64_t next_sample = 0;
  // Why the parameters were not updated ("the gradient of … on rank 1 is not finite"); empty: they
  // were.
  std::string skipped;
  MetricSums metrics;  // of the step, as its objective lists them; not written by step_line
  json::Object extra;  // further fields, appended in order
  // Times differ from run to run: they are not part of what equal runs have in common. Written
  // where there are any.
  StepSeconds seconds;  // of rank 0
  StepRates rates;
  std::vector<OperatorSeconds> operators;  // where they were asked for (troupe.operator_times)
  // What rank 0 has held of its GPU's memory at most, by purpose, and kDeviceInUse: what the device
  // says is taken, by whomever, and what rank 0 has given back since. Of a process's first step,
  // and of those in which it grew.
  std::vector<NamedBytes> device_bytes;
};

// {"step": 5, "loss": "0x1.8p+1", "grad_norm": "0x1p+0", "lr": 0.0003, "tokens": 4096,
//  "epoch": 0, "next_sample": 160, "skipped": …, "seconds": {"data": …, …}, "tokens_per_s": …,
//  "gflops": …, "gemm_share": …, "bytes_sent": …, "operators": {"gemm nt": 0.1, …}, "device_bytes":
//  {"parameters": …, "in_use": …}}
// Floats that must agree in every bit are in C's %a, "nan", "inf" or "-inf".
std::string step_line(const StepRecord& record);
// What to do about lines that are no step's: a write that a full disk cut short leaves one behind.
enum class DamagedLines { kRefuse, kSkip };
// The records of a steps.jsonl. Refused: kDataLoss with the line's number.
Result<std::vector<StepRecord>> read_steps(FileSystem& files, const std::string& path,
                                           DamagedLines damaged = DamagedLines::kRefuse);
// The step of its last whole line; 0 where there is none, or no file that can be read in places.
std::int64_t last_step_in(FileSystem& files, const std::string& path);
// The text of a steps.jsonl without what equal runs need not have in common: seconds, tokens_per_s,
// gflops, gemm_share, bytes_sent, operators and device_bytes. Two runs are equal when these texts
// are. Lines that are no JSON stay.
std::string strip_timings(std::string_view steps_text);
// The same of one record.
StepRecord without_timings(StepRecord record);

// What a log event writes to trainer_log.jsonl: LLaMA-Factory's LogCallback. Absent fields are
// omitted.
struct TrainerLogEntry {
  std::int64_t current_steps = 0;
  std::int64_t total_steps = 0;
  std::optional<double> loss, eval_loss, predict_loss, reward, accuracy;
  std::optional<double> learning_rate;
  std::optional<double> epoch;
  double elapsed_s = 0;
  double remaining_s = 0;
  // Tokens seen so far; throughput (tokens/s since the start) is written with it, both only if > 0.
  std::int64_t total_tokens = 0;
};

// Field order, omission and rounding of LLaMA-Factory: loss 4 decimals, percentage and throughput
// 2, times H:MM:SS.
std::string trainer_log_line(const TrainerLogEntry& entry);

}  // namespace troupe::train
