#include "train/report/step_log.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <span>

#include "runtime/base/check.h"
#include "runtime/base/limits.h"
#include "train/report/format.h"

namespace troupe::train {
namespace {

constexpr int kLossDigits = 4;
constexpr int kPercentageDigits = 2;
constexpr int kThroughputDigits = 2;
constexpr int kRateDigits = 2;
constexpr int kShareDigits = 4;

// What step_line writes besides StepRecord::extra.
constexpr std::array<std::string_view, 15> kStepKeys = {
    "step",   "loss",        "grad_norm",  "lr",        "tokens",
    "epoch",  "next_sample", "skipped",    "seconds",   "tokens_per_s",
    "gflops", "gemm_share",  "bytes_sent", "operators", "device_bytes"};
// Those among them that differ between equal runs.
constexpr std::array<std::string_view, 7> kTimingKeys = {
    "seconds", "tokens_per_s", "gflops", "gemm_share", "bytes_sent", "operators", "device_bytes"};

// The lines of `text` that end in a newline, each without it.
std::vector<std::string_view> complete_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (true) {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) return lines;
    if (end > 0) lines.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
}

// What is looked at of a file's end: some hundred steps.
constexpr std::uint64_t kTailBytes = 64u << 10;

// The last lines of a file; nothing where that cannot be read in places.
std::optional<std::string> tail_of(FileSystem& files, const std::string& path) {
  const auto file = files.open_readable(path);
  if (!file.ok()) return std::nullopt;
  const std::uint64_t size = (*file)->size();
  const std::uint64_t from = size > kTailBytes ? size - kTailBytes : 0;
  std::string text(static_cast<std::size_t>(size - from), '\0');
  if (!(*file)->read_at(from, std::as_writable_bytes(std::span(text))).ok()) return std::nullopt;
  if (from == 0) return text;
  const auto begin = text.find('\n');
  if (begin == std::string::npos) return std::nullopt;  // a line as long as that
  return text.substr(begin + 1);
}

// Whether all lines are whole and none is of a later step, without reading each as JSON. Steps do
// not fall from line to line, so that the last one tells; a torn line does not close what it
// opened.
bool nothing_to_drop(std::string_view text, const std::string& path, std::string_view step_key,
                     std::int64_t step) {
  const auto lines = complete_lines(text);
  if (lines.empty()) return text.empty();
  std::size_t bytes = 0;
  for (const auto line : lines) {
    if (line.front() != '{' || line.back() != '}' ||
        std::ranges::count(line, '{') != std::ranges::count(line, '}')) {
      return false;
    }
    bytes += line.size() + 1;
  }
  if (bytes != text.size()) return false;
  const auto last = parse_python_json(lines.back(), path);
  if (!last) return false;
  const auto last_step = json::find_integer(*last, step_key);
  return last_step && *last_step <= step;
}

Result<std::string> read_or_empty(FileSystem& files, const std::string& path) {
  if (!files.exists(path)) return std::string();
  return files.read(path, limits::kJsonFileBytesMax);
}

std::optional<double> parse_hex(const json::Value& record, std::string_view key) {
  const auto text = json::find_string(record, key);
  if (!text || text->empty()) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(text->c_str(), &end);
  if (*end != '\0') return std::nullopt;
  return value;
}

}  // namespace

Result<LineFile> LineFile::open(FileSystem& files, const std::string& path) {
  const auto text = TROUPE_TRY(read_or_empty(files, path));
  LineFile file(files, path);
  if (!text.empty() && text.back() != '\n') {
    const auto end = text.rfind('\n');
    TROUPE_RETURN_IF_ERROR(
        file.rewrite(text, text.substr(0, end == std::string::npos ? 0 : end + 1), true));
  }
  file.file_ = TROUPE_TRY(files.open_append(path));
  return file;
}

// A full disk has no room for a second copy: torn lines may stay until there is some.
Status LineFile::rewrite(std::string_view before, std::string_view after, bool only_torn_lines) {
  const Status written = write_file_atomically(*files_, path_, after);
  if (written.code() != Code::kResourceExhausted || !only_torn_lines) return written;
  has_torn_lines_ = true;
  torn_ = !before.empty() && before.back() != '\n';
  return {};
}

Result<LineFile> LineFile::open_at_step(FileSystem& files, const std::string& path,
                                        std::string_view step_key, std::int64_t step) {
  LineFile file(files, path);
  const auto tail = tail_of(files, path);
  if (tail && nothing_to_drop(*tail, path, step_key, step)) {
    file.file_ = TROUPE_TRY(files.open_append(path));
    return file;
  }
  const auto text = TROUPE_TRY(read_or_empty(files, path));
  std::string kept;
  bool only_torn_lines = true;
  for (const auto line : complete_lines(text)) {
    const auto value = parse_python_json(line, path);
    if (!value) continue;
    const auto line_step = json::find_integer(*value, step_key);
    const bool counts = line_step && *line_step <= step;
    if (counts) kept.append(line) += '\n';
    only_torn_lines = only_torn_lines && counts;
  }
  if (kept != text) TROUPE_RETURN_IF_ERROR(file.rewrite(text, kept, only_torn_lines));
  file.file_ = TROUPE_TRY(files.open_append(path));
  return file;
}

Status LineFile::append(std::string_view line) {
  TROUPE_CHECK(line.find('\n') == std::string_view::npos);
  const bool waited = !unwritten_.empty();
  unwritten_.emplace_back(line);
  unwritten_bytes_ += line.size() + 1;
  while (unwritten_bytes_ > kUnwrittenBytesMax && unwritten_.size() > 1) {
    unwritten_bytes_ -= unwritten_.front().size() + 1;
    unwritten_.pop_front();
  }
  Status status = write_unwritten();
  return waited ? Status() : status;
}

Status LineFile::write_unwritten() {
  while (!unwritten_.empty()) {
    // After a failure part of a line may stand there: end it, readers skip it.
    std::string text(torn_ ? "\n" : "");
    text.append(unwritten_.front()) += '\n';
    const Status written = file_->append(std::string_view(text));
    torn_ = !written.ok();
    has_torn_lines_ = has_torn_lines_ || torn_;
    if (torn_) return written;
    unwritten_bytes_ -= unwritten_.front().size() + 1;
    unwritten_.pop_front();
  }
  return {};
}

Status LineFile::drop_torn_lines() {
  const auto text = TROUPE_TRY(read_or_empty(*files_, path_));
  std::string whole;
  for (const auto line : complete_lines(text)) {
    if (parse_python_json(line, path_).ok()) whole.append(line) += '\n';
  }
  TROUPE_RETURN_IF_ERROR(write_file_atomically(*files_, path_, whole));
  file_ = TROUPE_TRY(files_->open_append(path_));
  has_torn_lines_ = false;
  return {};
}

Status LineFile::sync() {
  TROUPE_RETURN_IF_ERROR(write_unwritten());
  // Readers pass over what stays, where there is no room for a second copy yet.
  if (has_torn_lines_) static_cast<void>(drop_torn_lines());
  return file_->sync();
}

std::string step_line(const StepRecord& record) {
  json::Object line{{"step", record.step},
                    {"loss", hex_float(record.loss)},
                    {"grad_norm", hex_float(record.grad_norm)},
                    {"lr", record.learning_rate},
                    {"tokens", record.tokens}};
  if (record.epoch > 0 || record.next_sample > 0) {
    line["epoch"] = record.epoch;
    line["next_sample"] = record.next_sample;
  }
  if (!record.skipped.empty()) line["skipped"] = record.skipped;
  for (const auto& member : record.extra) line.insert(member);
  if (record.seconds.total() > 0) {
    line["seconds"] = to_json(record.seconds);
    line["tokens_per_s"] = round_to(record.rates.tokens_per_s, kRateDigits);
    line["gflops"] = round_to(record.rates.gflops, kRateDigits);
    line["gemm_share"] = round_to(record.rates.gemm_share, kShareDigits);
    line["bytes_sent"] = record.rates.bytes_sent;
  }
  if (!record.operators.empty()) line["operators"] = to_json(record.operators);
  if (!record.device_bytes.empty()) {
    json::Object bytes;
    for (const NamedBytes& part : record.device_bytes) bytes[part.name] = part.bytes;
    line["device_bytes"] = std::move(bytes);
  }
  return python_json(line);
}

std::string strip_timings(std::string_view steps_text) {
  std::string out;
  while (!steps_text.empty()) {
    const auto end = std::min(steps_text.find('\n'), steps_text.size());
    const auto line = steps_text.substr(0, end);
    auto value = parse_python_json(line, kStepsFile);
    if (value.ok() && value->is_object()) {
      json::Object kept;
      for (const auto& member : value->get_object()) {
        const std::string_view key(member.key());
        if (std::ranges::find(kTimingKeys, key) == kTimingKeys.end()) kept.insert(member);
      }
      out += python_json(kept);
    } else {
      out += line;
    }
    if (end < steps_text.size()) out += '\n';
    steps_text.remove_prefix(std::min(end + 1, steps_text.size()));
  }
  return out;
}

StepRecord without_timings(StepRecord record) {
  record.seconds = {};
  record.rates = {};
  record.operators.clear();
  record.device_bytes.clear();
  return record;
}

Result<std::vector<StepRecord>> read_steps(FileSystem& files, const std::string& path,
                                           DamagedLines damaged) {
  const auto text = TROUPE_TRY(files.read(path, limits::kJsonFileBytesMax));
  std::vector<StepRecord> records;
  int number = 0;
  for (const auto line : complete_lines(text)) {
    ++number;
    const auto value = parse_python_json(line, path);
    if (!value && damaged == DamagedLines::kSkip) continue;
    if (!value) return error(Code::kDataLoss, "{}: line {} is no JSON", path, number);
    const auto step = json::find_integer(*value, "step");
    const auto loss = parse_hex(*value, "loss");
    const auto grad_norm = parse_hex(*value, "grad_norm");
    if (!step || !loss || !grad_norm) {
      if (damaged == DamagedLines::kSkip) continue;
      return error(Code::kDataLoss, "{}: line {} lacks step, loss or grad_norm", path, number);
    }
    StepRecord record{.step = *step,
                      .loss = *loss,
                      .grad_norm = *grad_norm,
                      .learning_rate = json::find_number(*value, "lr").value_or(0),
                      .tokens = json::find_integer(*value, "tokens").value_or(0),
                      .epoch = json::find_integer(*value, "epoch").value_or(0),
                      .next_sample = json::find_integer(*value, "next_sample").value_or(0),
                      .skipped = json::find_string(*value, "skipped").value_or("")};
    if (const auto* seconds = json::find(*value, "seconds")) {
      record.seconds = step_seconds_from_json(*seconds);
    }
    record.rates = {.tokens_per_s = json::find_number(*value, "tokens_per_s").value_or(0),
                    .gflops = json::find_number(*value, "gflops").value_or(0),
                    .gemm_share = json::find_number(*value, "gemm_share").value_or(0),
                    .bytes_sent = static_cast<std::uint64_t>(
                        json::find_integer(*value, "bytes_sent").value_or(0))};
    if (const auto* operators = json::find(*value, "operators")) {
      record.operators = operator_seconds_from_json(*operators);
    }
    if (const auto* bytes = json::find(*value, "device_bytes"); bytes && bytes->is_object()) {
      for (const auto& member : bytes->get_object())
        if (const auto count = json::find_integer(*bytes, member.key()))
          record.device_bytes.push_back({std::string(member.key()), *count});
    }
    for (const auto& member : value->get_object()) {
      const std::string_view key(member.key());
      if (std::ranges::find(kStepKeys, key) == kStepKeys.end()) record.extra.insert(member);
    }
    records.push_back(std::move(record));
  }
  return records;
}

std::int64_t last_step_in(FileSystem& files, const std::string& path) {
  const auto text = tail_of(files, path);
  if (!text) return 0;
  const auto end = text->rfind('\n');
  if (end == std::string::npos || end == 0) return 0;
  const auto before = text->rfind('\n', end - 1);
  const auto begin = before == std::string::npos ? 0 : before + 1;
  const auto line = parse_python_json(std::string_view(*text).substr(begin, end - begin), path);
  return line.ok() ? json::find_integer(*line, "step").value_or(0) : 0;
}

std::string trainer_log_line(const TrainerLogEntry& entry) {
  json::Object line{{"current_steps", entry.current_steps}, {"total_steps", entry.total_steps}};
  const auto put = [&](const char* key, const std::optional<double>& value, int digits = -1) {
    if (value) line[key] = digits < 0 ? *value : round_to(*value, digits);
  };
  put("loss", entry.loss, kLossDigits);
  put("eval_loss", entry.eval_loss);
  put("predict_loss", entry.predict_loss);
  put("reward", entry.reward);
  put("accuracy", entry.accuracy);
  put("lr", entry.learning_rate);
  put("epoch", entry.epoch);
  if (entry.total_steps > 0) {
    put("percentage",
        static_cast<double>(entry.current_steps) / static_cast<double>(entry.total_steps) * 100,
        kPercentageDigits);
  } else {
    line["percentage"] = 100;
  }
  line["elapsed_time"] = format_duration(entry.elapsed_s);
  line["remaining_time"] = format_duration(entry.remaining_s);
  if (entry.total_tokens > 0) {
    const double seconds = entry.elapsed_s;
    put("throughput", seconds > 0 ? static_cast<double>(entry.total_tokens) / seconds : 0.0,
        kThroughputDigits);
    line["total_tokens"] = entry.total_tokens;
  }
  return python_json(line);
}

}  // namespace troupe::train
