#pragma once
// Logging: a Logger is passed to whoever needs one; there is no global logger.
//
//   log.info("node {} joined from {}", node.brief(), address);
//
// Lines read "2026-02-06T19:00:00.123456Z I head: node 1a2b3c4d joined from 10.0.0.2:7001".
// Thread-safe: a sink receives whole lines, one at a time.

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "troupe/clock.h"
#include "troupe/log_level.h"

namespace troupe {

// Receives a finished line without its newline.
using LogSink = std::function<void(LogLevel, std::string_view line)>;

class Logger {
 public:
  // Writes to `sink` what is at least `level`. `component` names the part that speaks ("head").
  // Without a clock lines have the system's time.
  Logger(std::string component, LogLevel level, LogSink sink,
         std::shared_ptr<const Clock> clock = nullptr);
  // To standard error.
  static Logger to_stderr(std::string component, LogLevel level = LogLevel::kInfo);
  // To nowhere, for tests.
  static Logger discard();

  // The same sink under another component's name.
  Logger named(std::string component) const;

  bool enabled(LogLevel level) const { return level >= level_; }
  template <typename... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kDebug, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kInfo, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kWarning, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kError, format, std::forward<Args>(args)...);
  }

 private:
  struct Shared;
  template <typename... Args>
  void write(LogLevel level, fmt::format_string<Args...> format, Args&&... args) const {
    if (enabled(level)) emit(level, format, fmt::make_format_args(args...));
  }
  void emit(LogLevel level, fmt::string_view format, fmt::format_args args) const;

  std::string component_;
  LogLevel level_;
  std::shared_ptr<Shared> shared_;
};

// "debug", "info", "warning", "error", "off"; anything else is kInfo.
LogLevel log_level_from_name(std::string_view name);

}  // namespace troupe
