#include "train/trainer/progress_lines.h"

#include <poll.h>

#include <algorithm>
#include <array>

#include "train/report/format.h"
#include "train/report/recovery_table.h"

namespace troupe::train {
namespace {

constexpr auto kLook = std::chrono::milliseconds(200);
// One attempt to reach a controller that is being replaced, and the pause after one that failed:
// the user is listened to in between.
constexpr auto kConnectAttempt = std::chrono::seconds(2);
constexpr auto kConnectPause = std::chrono::milliseconds(50);

std::string text_of(const json::Value& line, std::string_view key) {
  return json::find_string(line, key).value_or("");
}
double number_of(const json::Value& line, std::string_view key) {
  return json::find_number(line, key).value_or(0);
}
std::int64_t integer_of(const json::Value& line, std::string_view key) {
  return static_cast<std::int64_t>(number_of(line, key));
}

StepSeconds seconds_of(const json::Value& line) {
  const auto* seconds = json::find(line, "seconds");
  return seconds ? step_seconds_from_json(*seconds) : StepSeconds();
}

std::string describe_evaluation(const json::Value& line) {
  const std::string set = text_of(line, "data_set");
  return fmt::format("evaluation at step {:.0f}: eval_{}{}loss {}  {:.0f} samples in {:.1f} s{}",
                     number_of(line, "step"), set, set.empty() ? "" : "_",
                     format_scientific(number_of(line, "loss")), number_of(line, "samples"),
                     number_of(line, "seconds"),
                     json::find_bool(line, "best").value_or(false) ? "  the best so far" : "");
}

// Steps on the way back are the recovery's own line.
bool is_part_of_recovery(std::string_view event) {
  return event == events::kRespawn || event == events::kSpare || event == events::kReload ||
         event == events::kResume;
}

}  // namespace

void ProgressLines::say(const std::string& text) {
  if (reporter_) {
    reporter_->message(text);
  } else {
    output_.write(text + "\n");
  }
}

bool ProgressLines::read_more() {
  std::array<std::byte, 1 << 16> chunk;
  StreamIo io;
  do {
    io = stream_.read(chunk);
    buffer_.append(reinterpret_cast<const char*>(chunk.data()), io.count);
    if (io.count > 0 && saved_by_) saved_by_ = clock_.now() + options_.stop_timeout;
  } while (io.count == chunk.size());
  return io.state == StreamIo::State::kOpen && !is_outdated();
}

bool ProgressLines::is_outdated() {
  if (!options_.process) return false;
  const std::uint64_t newest = options_.process();
  if (connected_to_ == 0) connected_to_ = newest;
  return newest > connected_to_;
}

void ProgressLines::show_step(const json::Value& line) {
  const std::int64_t step = integer_of(line, "step");
  if (!reporter_) {
    reporter_.emplace(clock_, output_, integer_of(line, "total_steps"), step - 1);
  }
  reporter_->update({.step = step,
                     .loss = number_of(line, "loss"),
                     .learning_rate = number_of(line, "lr"),
                     .tokens = integer_of(line, "tokens"),
                     .seconds = seconds_of(line),
                     .rates = {.tokens_per_s = number_of(line, "tokens_per_s"),
                               .gflops = number_of(line, "gflops"),
                               .gemm_share = number_of(line, "gemm_share")}});
  if (const auto skipped = text_of(line, "skipped"); !skipped.empty()) {
    say(fmt::format("warning: step {} was skipped: {}", step, skipped));
  }
  if (json::find_bool(line, "logged").value_or(false))
    reporter_->log(json::find_number(line, "logged_loss"));
}

void ProgressLines::show_event(const json::Value& line) {
  std::string text = text_of(line, "text");
  std::string name = text_of(line, "event");
  if (const auto* object = json::find(line, "line")) {
    const auto event = parse_event_line(python_json(*object), "progress", 1);
    if (!event.ok()) return say("warning: " + event.status().to_string());
    // Lines may come twice where the controller was replaced.
    if (std::find(events_.begin(), events_.end(), *event) != events_.end()) return;
    events_.push_back(*event);
    name = event->event;
  }
  if (name == events::kModelHeld) model_held_ = true;
  if (name == events::kRecovered) {
    const auto recoveries = recoveries_of(events_);
    if (!recoveries.empty()) text = recovery_line(recoveries.back());
  }
  if (options_.on_line) options_.on_line(line, text);
  if (!text.empty() && !is_part_of_recovery(name)) say(text);
}

Status ProgressLines::take_snapshot(const json::Value& line) {
  const std::int64_t total = integer_of(line, "total_steps");
  if (!reporter_ && total > 0) {
    reporter_.emplace(clock_, output_, total, integer_of(line, "step"));
  }
  if (!json::find_bool(line, "wants_bundle").value_or(false)) return {};
  return options_.hand_over().prefixed("the run's new controller did not get its data");
}

Result<std::optional<RunEnd>> ProgressLines::show(const json::Value& line) {
  const std::string kind = text_of(line, "kind");
  if (options_.on_line && kind != "event" && kind != "snapshot" && kind != "end")
    options_.on_line(line, text_of(line, "text"));
  if (kind == "step") {
    show_step(line);
  } else if (kind == "event") {
    show_event(line);
  } else if (kind == "snapshot") {
    TROUPE_RETURN_IF_ERROR(take_snapshot(line));
  } else if (kind == "end") {
    if (reporter_) reporter_->finish();
    const Code code = code_from_number(static_cast<int>(number_of(line, "code")));
    return std::optional(
        RunEnd{code == Code::kOk ? Status() : Status(code, text_of(line, "message")),
               integer_of(line, "failures"), integer_of(line, "last_step"),
               text_of(line, "last_checkpoint")});
  } else if (kind == "warning") {
    say("warning: " + text_of(line, "text"));
  } else if (kind == "checkpoint") {
    say("saved " + text_of(line, "path"));
  } else if (kind == "evaluation") {
    say(describe_evaluation(line));
  }
  return std::optional<RunEnd>();
}

Result<std::optional<RunEnd>> ProgressLines::show_lines() {
  for (std::size_t newline; (newline = buffer_.find('\n')) != std::string::npos;) {
    const auto line = parse_python_json(std::string_view(buffer_).substr(0, newline), "progress");
    buffer_.erase(0, newline + 1);
    if (!line.ok()) return line.status();
    if (auto end = TROUPE_TRY(show(*line))) return end;
  }
  return std::optional<RunEnd>();
}

void ProgressLines::wait() {
  pollfd fds[2] = {{stream_.fd(), POLLIN, 0}, {stop_by_ ? -1 : options_.interrupt_fd, POLLIN, 0}};
  const auto pause = stream_.valid() ? kLook : kConnectPause;
  ::poll(fds, 2, static_cast<int>(pause.count()));
  if (fds[1].revents != 0) take_wish();
}

void ProgressLines::take_wish() {
  const Interrupt wish = options_.take_interrupt();
  if (wish == Interrupt::kNone) return;
  if (wish == Interrupt::kSaveThenEnd && !saving_) {
    saving_ = true;
    saved_by_ = clock_.now() + options_.stop_timeout;
    say("told to end: saving a checkpoint after this step; a second signal, a second later or "
        "more, ends the run at once");
    options_.tell(wish);
    return;
  }
  stop_by_ = clock_.now() + options_.stop_timeout;
  say("interrupted: ending the run");
  options_.tell(Interrupt::kEnd);
}

Status ProgressLines::connect_again() {
  if (options_.process) connected_to_ = options_.process();
  auto stream = options_.connect(Deadline::after(kConnectAttempt));
  if (stream.ok()) {
    stream_ = std::move(*stream);
    away_since_.reset();
    if (stop_by_) {
      options_.tell(Interrupt::kEnd);
    } else if (saving_) {
      options_.tell(Interrupt::kSaveThenEnd);
    }
    return {};
  }
  const Code code = stream.status().code();
  if (code == Code::kActorDied || code == Code::kCancelled) {
    return stream.status().prefixed("the run's controller is gone");
  }
  if (clock_.now() - *away_since_ < options_.reconnect_timeout) return {};
  return error(Code::kActorDied, "the run's controller is gone, and no new one can be reached: {}",
               stream.status().to_string());
}

Result<std::optional<RunEnd>> ProgressLines::follow_once() {
  wait();
  if (stream_.valid() && !read_more()) {
    // Half a line of a process that is gone; its successor tells what matters.
    if (auto end = TROUPE_TRY(show_lines())) return end;
    buffer_.clear();
    stream_.reset();
    away_since_ = clock_.now();
  }
  if (auto end = TROUPE_TRY(show_lines())) return end;
  if (model_held_ && options_.take_save_wish) {
    if (const auto folder = options_.take_save_wish()) options_.save_to(*folder);
  }
  if (stop_by_ && clock_.now() > *stop_by_) {
    return std::optional(RunEnd{error(Code::kCancelled, "interrupted")});
  }
  if (saved_by_ && clock_.now() > *saved_by_) {
    return std::optional(RunEnd{
        error(Code::kCancelled, "the run was told to stop, and its controller does not answer")});
  }
  if (!stream_.valid()) TROUPE_RETURN_IF_ERROR(connect_again());
  return std::optional<RunEnd>();
}

Result<RunEnd> ProgressLines::follow() {
  for (;;) {
    if (auto end = TROUPE_TRY(follow_once())) return std::move(*end);
  }
}

}  // namespace troupe::train
