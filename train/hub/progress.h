#pragma once
// What a person sees of downloads.

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "troupe/clock.h"

namespace troupe::train::hub {

// Called from the threads that download.
class Progress {
 public:
  virtual ~Progress() = default;
  // A file of which `missing_bytes` are still to come begins.
  virtual void begin(std::string_view file, std::uint64_t missing_bytes) = 0;
  virtual void received(std::uint64_t bytes) = 0;
  // Bytes that came must come again.
  virtual void lost(std::uint64_t bytes) = 0;
  virtual void end(std::string_view file) = 0;
  // No more is to be downloaded now: what a terminal shows next begins a line.
  virtual void finish() {}
  // Something that a person should know: a wait, another source.
  virtual void say(std::string_view line) = 0;
};

// Writes nothing but what is said.
class QuietProgress : public Progress {
 public:
  explicit QuietProgress(std::function<void(const std::string&)> write)
      : write_(std::move(write)) {}
  void begin(std::string_view, std::uint64_t) override {}
  void received(std::uint64_t) override {}
  void lost(std::uint64_t) override {}
  void end(std::string_view) override {}
  void say(std::string_view line) override { write_(std::string(line) + "\n"); }

 private:
  std::function<void(const std::string&)> write_;
};

// All downloads together: one line that is written over on a terminal, ten times a second; a line
// every ten seconds in a log.
class ProgressText final : public Progress {
 public:
  ProgressText(const Clock& clock, bool terminal, std::function<void(const std::string&)> write);
  ~ProgressText() override;

  void begin(std::string_view file, std::uint64_t missing_bytes) override;
  void received(std::uint64_t bytes) override;
  void lost(std::uint64_t bytes) override;
  void end(std::string_view file) override;
  void finish() override;
  void say(std::string_view line) override;

 private:
  void show(bool now);
  const Clock& clock_;
  const bool terminal_;
  const std::function<void(const std::string&)> write_;
  std::mutex mutex_;
  TimePoint began_, shown_;
  std::uint64_t files_ = 0, ended_ = 0, bytes_ = 0, received_ = 0, came_ = 0;
  std::size_t width_ = 0;  // of what stands on the terminal's line
};

}  // namespace troupe::train::hub
