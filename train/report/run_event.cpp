#include "train/report/run_event.h"

#include <chrono>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/base/limits.h"
#include "train/report/format.h"

namespace troupe::train {
namespace {

struct TextField {
  const char* key;
  std::string RunEvent::*member;
};
constexpr TextField kTextFields[] = {
    {"run", &RunEvent::run},   {"cause", &RunEvent::cause}, {"doing", &RunEvent::doing},
    {"path", &RunEvent::path}, {"fault", &RunEvent::fault},
};

struct MillisecondsField {
  const char* key;
  std::optional<double> RunEvent::*member;
};
constexpr MillisecondsField kMillisecondsFields[] = {
    {"detected_after_ms", &RunEvent::detected_after_ms},
    {"respawn_ms", &RunEvent::respawn_ms},
    {"attach_ms", &RunEvent::attach_ms},
    {"reform_ms", &RunEvent::reform_ms},
    {"first_step_ms", &RunEvent::first_step_ms},
    {"recovery_ms", &RunEvent::recovery_ms},
};

struct CountField {
  const char* key;
  std::optional<std::int64_t> RunEvent::*member;
};
constexpr CountField kCountFields[] = {
    {"recomputed_steps", &RunEvent::recomputed_steps},
    {"lost_steps", &RunEvent::lost_steps},
    {"world_size", &RunEvent::world_size},
    {"world", &RunEvent::world},
    {"total_steps", &RunEvent::total_steps},
    {"code", &RunEvent::code},
};

struct NumbersField {
  const char* key;
  const char* of;
  std::vector<int> RunEvent::*member;
};
constexpr NumbersField kNumbersFields[] = {
    {"waited_for_by", "ranks", &RunEvent::waited_for_by},
    {"trainers", "trainers", &RunEvent::trainers},
};

// So many digits from `at`, or nothing.
std::optional<int> digits(std::string_view text, std::size_t at, std::size_t count) {
  if (at + count > text.size()) return std::nullopt;
  int value = 0;
  for (const char c : text.substr(at, count)) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

// The inverse of format_unix_time_us.
std::optional<std::int64_t> parse_time(std::string_view text) {
  constexpr std::string_view kForm = "0000-00-00T00:00:00.000000Z";
  if (text.size() != kForm.size()) return std::nullopt;
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    if (kForm[i] != '0' && text[i] != kForm[i]) return std::nullopt;
  }
  const auto year = digits(text, 0, 4), month = digits(text, 5, 2), day = digits(text, 8, 2),
             hour = digits(text, 11, 2), minute = digits(text, 14, 2), second = digits(text, 17, 2),
             micros = digits(text, 20, 6);
  if (!year || !month || !day || !hour || !minute || !second || !micros) return std::nullopt;
  const std::chrono::year_month_day date(std::chrono::year(*year),
                                         std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day)));
  if (!date.ok() || *hour > 23 || *minute > 59 || *second > 60) return std::nullopt;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  const std::int64_t seconds = ((days * 24LL + *hour) * 60 + *minute) * 60 + *second;
  return seconds * 1'000'000 + *micros;
}

}  // namespace

std::string event_line(const RunEvent& event, std::int64_t unix_time_us) {
  json::Object line{{"time", format_unix_time_us(unix_time_us)},
                    {"event", event.event},
                    {"generation", event.generation},
                    {"rank", event.rank},
                    {"node", event.node},
                    {"step", event.step}};
  for (const auto& field : kTextFields) {
    if (const auto& text = event.*field.member; !text.empty()) line[field.key] = text;
  }
  for (const auto& field : kNumbersFields) {
    const auto& numbers = event.*field.member;
    if (!numbers.empty()) line[field.key] = json::Array(numbers.begin(), numbers.end());
  }
  for (const auto& field : kMillisecondsFields) {
    if (const auto& value = event.*field.member) line[field.key] = *value;
  }
  for (const auto& field : kCountFields) {
    if (const auto& value = event.*field.member) line[field.key] = *value;
  }
  return python_json(line);
}

Result<RunEvent> parse_event_line(std::string_view line, std::string_view file, int line_number) {
  const auto damaged = [&](std::string_view why) {
    return error(Code::kDataLoss, "{}:{}: {}", file, line_number, why);
  };
  const auto value = parse_python_json(line, file);
  if (!value.ok() || !value->is_object()) return damaged("the line is no JSON object");
  RunEvent event;
  const auto name = json::find_string(*value, "event");
  if (!name || name->empty()) return damaged("'event', the name of what happened, is missing");
  event.event = *name;
  const auto time = parse_time(json::find_string(*value, "time").value_or(""));
  if (!time) return damaged("'time' is missing or is no time like 2026-02-06T19:00:00.123456Z");
  event.unix_time_us = *time;

  // Absent is fine; of another type is damage, and says which.
  std::string wrong;
  const auto integer = [&](const char* key) -> std::optional<std::int64_t> {
    const auto* found = json::find(*value, key);
    if (!found) return std::nullopt;
    const auto number = json::find_integer(*value, key);
    if (!number && wrong.empty()) wrong = fmt::format("'{}' is no whole number", key);
    return number;
  };
  const auto text = [&](const char* key) -> std::string {
    const auto* found = json::find(*value, key);
    if (!found) return {};
    const auto string = json::find_string(*value, key);
    if (!string && wrong.empty()) wrong = fmt::format("'{}' is no text", key);
    return string.value_or("");
  };
  event.generation = integer("generation").value_or(0);
  event.rank = static_cast<int>(integer("rank").value_or(-1));
  event.step = integer("step").value_or(-1);
  event.node = text("node");
  for (const auto& field : kTextFields) event.*field.member = text(field.key);
  for (const auto& field : kCountFields) event.*field.member = integer(field.key);
  for (const auto& field : kMillisecondsFields) {
    event.*field.member = json::find_number(*value, field.key);
    if (json::find(*value, field.key) && !(event.*field.member) && wrong.empty()) {
      wrong = fmt::format("'{}' is no number", field.key);
    }
  }
  for (const auto& field : kNumbersFields) {
    const auto* numbers = json::find(*value, field.key);
    if (!numbers) continue;
    const auto* array = numbers->if_array();
    bool good = array != nullptr;
    for (const auto& number : array ? *array : json::Array()) {
      good = good && number.is_int64();
      if (good) (event.*field.member).push_back(static_cast<int>(number.get_int64()));
    }
    if (!good) wrong = fmt::format("'{}' is no list of {}", field.key, field.of);
  }
  if (!wrong.empty()) return damaged(wrong);
  return event;
}

Result<EventsFile> read_events(FileSystem& files, const std::string& path) {
  const std::string text = TROUPE_TRY(files.read(path, limits::kJsonFileBytesMax));
  EventsFile result;
  std::string_view rest = text;
  for (int number = 1;; ++number) {
    const auto end = rest.find('\n');
    if (end == std::string_view::npos) return result;
    const auto line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    if (line.empty()) continue;
    auto event = parse_event_line(line, path, number);
    if (event.ok()) {
      result.events.push_back(std::move(*event));
    } else {
      result.damaged.push_back(event.status());
    }
  }
}

}  // namespace troupe::train
