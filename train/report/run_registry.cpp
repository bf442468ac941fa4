#include "train/report/run_registry.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/base/sort_by.h"

namespace troupe::train {
namespace {

constexpr std::uint64_t kNoteBytesMax = 1 << 20;
constexpr std::string_view kNoteSuffix = ".json";
constexpr std::string_view kIdPrefix = "run-";
// Runs that a message names.
constexpr std::size_t kNamedMax = 10;

std::string note_text(const RunRecord& record) {
  json::Object object{{"run", record.run},
                      {"output_dir", record.output_dir},
                      {"config", record.config},
                      {"log", record.log},
                      {"host_name", record.host_name},
                      {"pid", record.pid},
                      {"process_start", record.process_start},
                      {"started_unix_us", record.started_unix_us}};
  if (record.ended()) {
    object["ended_unix_us"] = record.ended_unix_us;
    object["code"] = static_cast<int>(record.end.code());
    object["message"] = record.end.message();
    object["last_step"] = record.last_step;
  }
  return json::write(object) + "\n";
}

std::optional<RunRecord> parse_note(const std::string& text, const std::string& path) {
  const auto value = json::parse(text, path);
  if (!value.ok()) return std::nullopt;
  const auto string = [&](const char* key) { return json::find_string(*value, key).value_or(""); };
  const auto integer = [&](const char* key) { return json::find_integer(*value, key).value_or(0); };
  RunRecord record{.run = string("run"),
                   .output_dir = string("output_dir"),
                   .config = string("config"),
                   .log = string("log"),
                   .host_name = string("host_name"),
                   .pid = integer("pid"),
                   .process_start = integer("process_start"),
                   .started_unix_us = integer("started_unix_us"),
                   .ended_unix_us = integer("ended_unix_us"),
                   .last_step = integer("last_step")};
  const Code code = code_from_number(static_cast<int>(integer("code")));
  if (code != Code::kOk) record.end = Status(code, string("message"));
  if (record.run.empty() || record.output_dir.empty()) return std::nullopt;
  return record;
}

// A run's id is a file's name: nothing else may come in from an argument.
bool is_id(const std::string& run) {
  return !run.empty() && run.size() <= 64 && std::ranges::all_of(run, [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_';
  });
}

std::string describe(const RunRecord& record) {
  std::string started = format_unix_time_us(record.started_unix_us);
  started.resize(16);
  started[10] = ' ';
  return fmt::format("{} ({}, {} in {})", record.run, started,
                     !record.ended()                         ? "not ended"
                     : record.end.ok()                       ? "ended well"
                     : record.end.code() == Code::kCancelled ? "stopped"
                                                             : "ended badly",
                     record.output_dir);
}

}  // namespace

std::int64_t process_start_ticks(FileSystem& files, std::int64_t pid) {
  if (pid <= 0) return 0;
  const auto text = files.read(fmt::format("/proc/{}/stat", pid), kNoteBytesMax);
  if (!text.ok()) return 0;
  // "pid (name) state ppid …": the name may hold anything. The start is field 22.
  std::istringstream fields(text->substr(text->rfind(')') + 1));
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return 0;
  for (int number = 4; number <= 22; ++number) fields >> field;
  return fields ? std::strtoll(field.c_str(), nullptr, 10) : 0;
}

DriverState driver_state(FileSystem& files, const RunRecord& record, const std::string& host_name) {
  if (record.ended()) return DriverState::kGone;
  if (record.host_name != host_name || record.process_start == 0) return DriverState::kUnknown;
  return process_start_ticks(files, record.pid) == record.process_start ? DriverState::kRuns
                                                                        : DriverState::kGone;
}

std::string absolute_path(const std::string& path) {
  std::error_code failed;
  std::string whole = std::filesystem::absolute(path, failed).lexically_normal();
  if (failed) return path;
  if (whole.size() > 1 && whole.ends_with('/')) whole.pop_back();
  return whole;
}

Status RunRegistry::write(const RunRecord& record) {
  if (!is_id(record.run)) {
    return error(Code::kInvalidArgument, "'{}' cannot be a run's id", record.run);
  }
  TROUPE_RETURN_IF_ERROR(files_.create_directories(directory_, 0700));
  TROUPE_RETURN_IF_ERROR(
      write_file_atomically(files_, join_path(directory_, record.run + std::string(kNoteSuffix)),
                            note_text(record), 0600));
  remove_oldest();
  return {};
}

void RunRegistry::remove_oldest() {
  const auto entries = files_.list(directory_);
  if (!entries.ok() || entries->size() <= kRunsMax) return;
  const auto records = list();
  if (!records.ok()) return;
  for (std::size_t i = kRunsMax; i < records->size(); ++i) {
    // Another run may have removed it at the same time.
    static_cast<void>(
        files_.remove(join_path(directory_, (*records)[i].run + std::string(kNoteSuffix))));
  }
}

Result<std::vector<RunRecord>> RunRegistry::list() {
  std::vector<RunRecord> records;
  if (!files_.exists(directory_)) return records;
  for (const auto& entry : TROUPE_TRY(files_.list(directory_))) {
    if (entry.is_directory || !entry.name.ends_with(kNoteSuffix)) continue;
    const std::string path = join_path(directory_, entry.name);
    const auto text = files_.read(path, kNoteBytesMax);
    if (!text.ok()) continue;
    auto record = parse_note(*text, path);
    if (record && entry.name == record->run + std::string(kNoteSuffix)) {
      records.push_back(std::move(*record));
    }
  }
  stable_sort_by(
      records, [](const auto& a, const auto& b) { return a.started_unix_us > b.started_unix_us; });
  return records;
}

Result<RunRecord> RunRegistry::find(const std::string& run) {
  for (const std::string& id : {run, std::string(kIdPrefix) + run}) {
    if (!is_id(id)) continue;
    const std::string path = join_path(directory_, id + std::string(kNoteSuffix));
    if (!files_.exists(path)) continue;
    const auto text = TROUPE_TRY(files_.read(path, kNoteBytesMax));
    if (auto record = parse_note(text, path)) return std::move(*record);
    return error(Code::kDataLoss,
                 "{} is not the note of a run: remove it, or name its output "
                 "directory",
                 path);
  }
  const auto records = TROUPE_TRY(list());
  if (records.empty()) {
    return error(Code::kNotFound, "there is no run '{}', nor any other in {}", run, directory_);
  }
  std::string newest;
  for (std::size_t i = 0; i < std::min(records.size(), kNamedMax); ++i) {
    newest += "\n  " + describe(records[i]);
  }
  return error(Code::kNotFound, "there is no run '{}'; the newest are:{}", run, newest);
}

Result<RunRecord> RunRegistry::find_named(const std::string& name) {
  if (!files_.exists(name)) return find(name);
  const std::string folder = absolute_path(name);
  if (auto record = TROUPE_TRY(find_output(folder))) return std::move(*record);
  return error(Code::kNotFound, "{} is not the output directory of a run in {}", folder,
               directory_);
}

std::string RunRegistry::wish_path(const std::string& run) const {
  return join_path(directory_, run + ".save");
}

Status RunRegistry::ask_to_save(const std::string& run, const std::string& folder) {
  return write_file_atomically(files_, wish_path(run), folder, 0600);
}

std::optional<std::string> RunRegistry::take_save_wish(const std::string& run) {
  const std::string path = wish_path(run);
  if (!files_.exists(path)) return std::nullopt;
  const auto folder = files_.read(path, kNoteBytesMax);
  static_cast<void>(files_.remove(path));
  if (!folder.ok() || folder->empty()) return std::nullopt;
  return *folder;
}

Result<std::optional<RunRecord>> RunRegistry::find_output(const std::string& output_dir) {
  for (auto& record : TROUPE_TRY(list())) {
    if (record.output_dir == output_dir) return std::optional(std::move(record));
  }
  return std::optional<RunRecord>();
}

}  // namespace troupe::train
