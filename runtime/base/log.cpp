#include "troupe/log.h"

#include <cstdio>

#include "runtime/base/clock.h"
#include "troupe/detail/mutex.h"

namespace troupe {

struct Logger::Shared {
  LogSink sink;
  std::shared_ptr<const Clock> clock;
  Mutex mutex;
};

Logger::Logger(std::string component, LogLevel level, LogSink sink,
               std::shared_ptr<const Clock> clock)
    : component_(std::move(component)), level_(level), shared_(std::make_shared<Shared>()) {
  shared_->sink = std::move(sink);
  shared_->clock = clock ? std::move(clock) : std::make_shared<SystemClock>();
}

Logger Logger::to_stderr(std::string component, LogLevel level) {
  return Logger(std::move(component), level, [](LogLevel, std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  });
}

Logger Logger::discard() {
  return Logger("", LogLevel::kOff, [](LogLevel, std::string_view) {});
}

Logger Logger::named(std::string component) const {
  Logger copy = *this;
  copy.component_ = std::move(component);
  return copy;
}

void Logger::emit(LogLevel level, fmt::string_view format, fmt::format_args args) const {
  static constexpr char kLetters[] = {'D', 'I', 'W', 'E', '-'};
  const std::string line =
      fmt::format("{} {} {}: {}", format_unix_time_us(shared_->clock->unix_time_us()),
                  kLetters[static_cast<int>(level)], component_, fmt::vformat(format, args));
  MutexLock lock(shared_->mutex);
  shared_->sink(level, line);
}

LogLevel log_level_from_name(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return LogLevel::kInfo;
}

}  // namespace troupe
