// A run's story as text for people.

#include <algorithm>
#include <cctype>
#include <optional>

#include "runtime/base/clock.h"
#include "runtime/base/sort_by.h"
#include "runtime/base/suggest.h"
#include "train/report/format.h"
#include "train/report/story.h"
#include "train/report/text_table.h"

namespace troupe::train {
namespace {

constexpr double kMicrosPerSecond = 1e6;
// Skipped steps that are told one by one.
constexpr std::size_t kSkippedToldMax = 10;
// Under the time that stands at the beginning of an entry.
const std::string kIndent(14, ' ');

// With a full stop, and a capital where it begins with a word.
std::string sentence(const std::string& words) {
  std::string text = printable(words);
  while (text.ends_with(' ')) text.pop_back();
  if (text.empty()) return text;
  if (!text.ends_with('.') && !text.ends_with('!')) text += '.';
  const auto word = std::ranges::find_if_not(text, [](unsigned char c) { return std::islower(c); });
  if (*word == ' ' || *word == ',' || *word == ':' || *word == '.') {
    text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
  }
  return text;
}

// "2026-02-06 19:00:00 UTC"
std::string date_and_time(std::int64_t unix_time_us) {
  std::string text = format_unix_time_us(unix_time_us);
  text.resize(text.find('.'));
  text[text.find('T')] = ' ';
  return text + " UTC";
}

// "19:00:12.512  "
std::string time_of_day(std::int64_t unix_time_us) {
  const std::string text = format_unix_time_us(unix_time_us);
  return text.substr(text.find('T') + 1, 12) + "  ";
}

// Entries of the story: a time, and sentences below each other.
class Entry {
 public:
  explicit Entry(std::int64_t unix_time_us) : time_(time_of_day(unix_time_us)) {}
  void say(const std::string& text) { lines_ += (lines_.empty() ? time_ : kIndent) + text + "\n"; }
  const std::string& text() const { return lines_; }

 private:
  std::string time_;
  std::string lines_;
};

std::string where(const RunEvent& event) {
  std::string text;
  if (event.step >= 0) text += fmt::format(" after step {}", event.step);
  if (!event.node.empty()) text += fmt::format(" on node {}", event.node);
  return text;
}

std::string because(const RunEvent& event) {
  std::string text;
  if (!event.fault.empty()) text = fmt::format(" The fault '{}' was injected.", event.fault);
  if (!event.cause.empty()) text += " " + sentence(event.cause);
  return text;
}

void tell_failure(Entry& entry, const RunEvent& event) {
  if (event.event == events::kHang) {
    entry.say(
        fmt::format("Rank {} hung{} and was killed.{}", event.rank, where(event), because(event)));
  } else if (event.event == events::kKeeper) {
    entry.say(fmt::format("The keeper{} died, and with it the memory of the node's ranks.{}",
                          event.node.empty() ? "" : " of node " + event.node, because(event)));
  } else if (event.event == events::kRecovered) {
    entry.say(sentence(event.cause));
  } else if (event.event == events::kFault) {
    entry.say(fmt::format("The fault '{}' struck{}.{}", event.fault,
                          event.rank < 0 ? "" : fmt::format(" rank {}", event.rank),
                          event.cause.empty() ? "" : " " + sentence(event.cause)));
  } else if (event.rank < 0) {
    entry.say(
        fmt::format("A spare died{}. Another one took its place.{}", where(event), because(event)));
  } else {
    entry.say(fmt::format("Rank {} died{}.{}", event.rank, where(event), because(event)));
  }
  if (!event.doing.empty()) entry.say("It was doing: " + printable(event.doing) + ".");
  if (!event.waited_for_by.empty()) {
    std::string ranks = name_ranks(event.waited_for_by);
    ranks.front() = 'R';
    entry.say(fmt::format("{} waited for it.", ranks));
  }
}

// Who took the lost ranks' places.
std::string replacement(const Recovery& recovery) {
  std::vector<std::string> parts;
  if (!recovery.spares.empty()) {
    parts.push_back(fmt::format("{} went to {}", name_ranks(recovery.spares),
                                recovery.spares.size() == 1 ? "a spare" : "spares"));
  }
  std::vector<int> anew;
  std::ranges::set_difference(recovery.respawned, recovery.spares, std::back_inserter(anew));
  // The process behind a spare comes back as the next spare: that is no part of the recovery.
  if (!anew.empty()) {
    parts.push_back(fmt::format("{} got {}", name_ranks(anew),
                                anew.size() == 1 ? "a new process" : "new processes"));
  }
  return join_words(parts);
}

void tell_way_back(Entry& entry, const Recovery& recovery) {
  std::vector<std::string> parts;
  const auto part = [&](std::string_view what, const std::optional<double>& value) {
    if (value) parts.push_back(fmt::format("{} {} ms", what, format_milliseconds(*value)));
  };
  part("noticed after", recovery.detected_after_ms);
  part(recovery.spares.empty() ? "a process again" : "a spare in place", recovery.respawn_ms);
  part("its memory again", recovery.attach_ms);
  part("the ranks together again", recovery.reform_ms);
  part("the first step", recovery.first_step_ms);
  std::string text = replacement(recovery);
  if (!text.empty()) text.front() = static_cast<char>(std::toupper(text.front()));
  if (!text.empty()) text += ".";
  if (!parts.empty()) {
    text += fmt::format("{}It took: {}.", text.empty() ? "" : " ", join_words(parts));
  }
  if (!text.empty()) entry.say(text);
}

void tell_cost(Entry& entry, const Recovery& recovery) {
  if (recovery.reloaded) {
    std::string from = "the run's beginning";
    if (recovery.reloaded_step > 0) from = fmt::format("step {}", recovery.reloaded_step);
    if (!recovery.reloaded_path.empty()) from += fmt::format(" ({})", recovery.reloaded_path);
    entry.say(fmt::format("Memory was not enough to go on from{}: all ranks went back to {}.",
                          recovery.reload_reason.empty()
                              ? ""
                              : fmt::format(" ({})", printable(recovery.reload_reason)),
                          from));
  }
  // More than "from memory": whose was lost, and what became of it.
  if (!recovery.reloaded && recovery.resumed.find(';') != std::string::npos)
    entry.say(fmt::format("The ranks went on {}.", printable(recovery.resumed)));
  if (!recovery.finished) return;
  std::string text;
  if (const auto again = recovery.recomputed_steps) {
    if (*again == 0) text = "Nothing was computed again";
    if (*again == 1 && recovery.first_step >= 0) {
      text = fmt::format("Step {} was computed again", recovery.first_step);
    } else if (*again > 0) {
      text = fmt::format("{} computed again",
                         *again == 1 ? "1 step was" : fmt::format("{} steps were", *again));
    }
  }
  if (const auto lost = recovery.lost_steps) {
    text += text.empty() ? "" : "; ";
    text += *lost == 0 ? "no finished step was lost"
                       : fmt::format("{} that had been finished {} lost", count_of(*lost, "step"),
                                     *lost == 1 ? "was" : "were");
  }
  if (recovery.recovery_ms) {
    text += fmt::format("{}It cost {} ms", text.empty() ? "" : ". ",
                        format_milliseconds(*recovery.recovery_ms));
  }
  if (text.empty()) return;
  text.front() = static_cast<char>(std::toupper(text.front()));
  entry.say(text + ".");
}

std::string tell_recovery(const Recovery& recovery) {
  std::string text;
  std::optional<Entry> entry;
  for (const auto& cause : recovery.causes) {
    if (entry) text += entry->text();
    entry.emplace(cause.unix_time_us);
    tell_failure(*entry, cause);
  }
  if (!entry) {
    entry.emplace(recovery.begun_unix_us);
    entry->say("The ranks lost each other, though none of them died.");
  }
  tell_way_back(*entry, recovery);
  tell_cost(*entry, recovery);
  if (!recovery.finished) entry->say("No step stood after it.");
  return text + entry->text();
}

std::string tell_incident(const RunEvent& event) {
  Entry entry(event.unix_time_us);
  const std::string cause = event.cause.empty() ? "" : " " + sentence(event.cause);
  if (event.event == events::kStraggler) {
    entry.say(fmt::format("Rank {} was slower than the others{}.{}", event.rank, where(event),
                          because(event)));
    if (!event.doing.empty()) entry.say("It was doing: " + printable(event.doing) + ".");
  } else if (event.event == events::kController) {
    entry.say("The run's controller was replaced; the new one took the ranks over as they were." +
              cause);
  } else if (event.event == events::kCheckpointFailed) {
    entry.say(fmt::format("The checkpoint {} was not written.{}", event.path, cause));
  } else if (event.event == events::kResize) {
    entry.say(fmt::format("After step {} the world had {}: {}.", event.step,
                          count_of(event.world_size.value_or(0), "rank"),
                          event.cause.empty() ? "machines came or left" : printable(event.cause)));
  } else if (event.event == events::kStruck) {
    entry.say(fmt::format("The fault '{}' struck {}.", event.fault, event.cause));
  } else if (event.event == events::kModelHeld) {
    entry.say(
        fmt::format("The finished model could not be written to {}, and was kept in memory.{}",
                    event.path, cause));
  } else if (event.event == events::kModelSaved) {
    entry.say(fmt::format("The finished model was written to {}.", event.path));
  } else if (event.event == events::kCheckpointAbandoned) {
    entry.say(fmt::format("The checkpoint {} was given up before it was complete.{}",
                          event.path.empty() ? "under way" : event.path, cause));
  } else {
    tell_failure(entry, event);
  }
  return entry.text();
}

// Entries in the order of their time.
std::string tell_entries(const RunStory& story) {
  std::vector<std::pair<std::int64_t, std::string>> entries;
  for (const auto& recovery : story.recoveries) {
    entries.emplace_back(recovery.begun_unix_us, tell_recovery(recovery));
  }
  for (const auto& event : story.incidents) {
    entries.emplace_back(event.unix_time_us, tell_incident(event));
  }
  stable_sort_by(entries, [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string text;
  for (const auto& entry : entries) text += entry.second;
  return text;
}

std::string tell_skipped(const RunStory& story) {
  std::string text;
  const std::span told(story.skipped.data(), std::min(story.skipped.size(), kSkippedToldMax));
  for (const StepRecord& record : told) {
    text += fmt::format("Step {} updated nothing: {}.\n", record.step, printable(record.skipped));
  }
  if (story.skipped.size() > kSkippedToldMax) {
    text += fmt::format(
        "So did {} more.\n",
        count_of(static_cast<std::int64_t>(story.skipped.size() - kSkippedToldMax), "step"));
  }
  return text;
}

std::string tell_beginning(const RunStory& story) {
  std::string text = story.run.empty() ? "A run" : story.run;
  text += ": ";
  if (story.world_size) {
    const bool changed = std::ranges::any_of(
        story.incidents, [](const RunEvent& event) { return event.event == events::kResize; });
    text += count_of(*story.world_size, "rank") + (changed ? " to begin with, " : ", ");
  }
  if (story.total_steps) text += count_of(*story.total_steps, "step") + ", ";
  text += fmt::format("in {}\n", story.output_dir);
  if (story.began_unix_us > 0) {
    text += fmt::format("It began on {}", date_and_time(story.began_unix_us));
    if (!story.resumed_from.empty()) {
      text +=
          fmt::format(" and went on from {}, after step {}", story.resumed_from, story.first_step);
    } else if (story.first_step > 0) {
      text += fmt::format(" and went on after step {}", story.first_step);
    }
    text += ".\n";
  }
  if (story.earlier_runs > 0) {
    text += fmt::format(
        "Before it, {} in this directory.\n",
        story.earlier_runs == 1 ? "one run was" : fmt::format("{} runs were", story.earlier_runs));
  }
  return text;
}

std::string so_far(const RunStory& story) {
  std::string text = story.total_steps
                         ? fmt::format("step {} of {}", story.last_step, *story.total_steps)
                         : fmt::format("step {}", story.last_step);
  if (story.last_loss) text += fmt::format(", loss {}", format_scientific(*story.last_loss));
  return text;
}

std::string how_to_resume(const RunStory& story) {
  if (story.last_checkpoint.empty()) {
    return "No checkpoint was written: the same command with overwrite_output_dir=true begins "
           "anew.\n";
  }
  return fmt::format("The same command with resume_from_checkpoint=true goes on from {}.\n",
                     story.last_checkpoint);
}

// The advice that a story gives first about an end of this kind.
std::string_view first_aid(Code code) {
  switch (code) {
    case Code::kResourceExhausted:
    case Code::kOutOfMemory:
      return "Make room first: 'troupe plan CONFIG' says what the run needs and what would fit. ";
    case Code::kInvalidArgument:
    case Code::kUnsupported:
    case Code::kNotFound:
    case Code::kPermissionDenied:
      return "Correct what the message names first. ";
    case Code::kActorDied:
    case Code::kActorError:
    case Code::kAborted:
    case Code::kDataLoss:
    case Code::kInternal:
      return "What the ranks wrote last is in the folder logs of the output directory, or with "
             "'troupe logs'. ";
    default:
      return "";
  }
}

std::string tell_end(const RunStory& story) {
  const std::string took = story.run_ms() > 0 ? format_duration(story.run_ms() / 1000) : "";
  const std::string after = took.empty() ? "" : " after " + took;
  const std::string on =
      story.ended_unix_us > 0 ? " on " + date_and_time(story.ended_unix_us) : std::string();
  switch (story.outcome) {
    case RunOutcome::kRunning: {
      std::string text = "It is running";
      if (story.driver_pid > 0) text += fmt::format(" (process {})", story.driver_pid);
      text += fmt::format(": {}{}.\n", so_far(story), took.empty() ? "" : ", " + took + " so far");
      if (!story.recoveries.empty() && !story.recoveries.back().finished) {
        const double since =
            static_cast<double>(story.ended_unix_us - story.recoveries.back().begun_unix_us);
        text += fmt::format("It is recovering, since {:.1f} s.\n", since / kMicrosPerSecond);
      }
      if (!story.waits_for.empty())
        text += fmt::format("It waits: {}\n", sentence(story.waits_for));
      return text;
    }
    case RunOutcome::kFinished: {
      std::string text = fmt::format("It ended well{}{}: ", on, after);
      text += story.total_steps && *story.total_steps == story.last_step
                  ? fmt::format("all {} are done", count_of(story.last_step, "step"))
                  : so_far(story);
      if (story.first_loss && story.last_loss && story.total_steps == story.last_step) {
        text += fmt::format(", loss {} → {}", format_scientific(*story.first_loss),
                            format_scientific(*story.last_loss));
      }
      return text + ".\n";
    }
    case RunOutcome::kStopped:
      return fmt::format("It was stopped{}{} at {}. {}\n", on, after, so_far(story),
                         sentence(story.end.message())) +
             how_to_resume(story);
    case RunOutcome::kFailed:
      return fmt::format("It ended badly{}{} at {}. {}\n", on, after, so_far(story),
                         sentence(story.end.message())) +
             std::string(first_aid(story.end.code())) + how_to_resume(story);
    case RunOutcome::kVanished:
      return fmt::format(
                 "It came to {} and has no end: its driver{} is gone without a word. It was "
                 "killed, "
                 "or the machine went down; its trainers ended with it.\n",
                 so_far(story),
                 story.driver_pid > 0 ? fmt::format(", process {},", story.driver_pid) : "") +
             how_to_resume(story);
    case RunOutcome::kUnknown:
      break;
  }
  return fmt::format("It came to {}, and nothing says that it has ended.\n", so_far(story)) +
         how_to_resume(story);
}

}  // namespace

std::string tell(const RunStory& story) {
  std::string text = tell_beginning(story);
  const std::string entries = tell_entries(story);
  if (!entries.empty()) text += "\n" + entries + "\n";
  text += tell_skipped(story);
  if (entries.empty() && story.skipped.empty()) {
    switch (story.outcome) {
      case RunOutcome::kRunning:
        text += "Nothing has gone wrong: no rank died, none hung.\n";
        break;
      case RunOutcome::kFinished:
      case RunOutcome::kStopped:
        text += "Nothing went wrong on the way: no rank died, none hung.\n";
        break;
      case RunOutcome::kFailed:
      case RunOutcome::kVanished:
      case RunOutcome::kUnknown:
        text += "Until its end no rank died, and none hung.\n";
        break;
    }
  }
  for (const std::string& notice : story.notices) text += sentence(notice) + "\n";
  text += tell_end(story);
  if (story.later_runs > 0) {
    text += fmt::format(
        "Its directory was gone on with by {}.\n",
        story.later_runs == 1 ? "another run" : fmt::format("{} runs", story.later_runs));
  }
  if (!story.recoveries.empty()) {
    text += "\n" + recovery_table(story.recoveries, story.run_ms());
  }
  for (const auto& status : story.damaged) {
    text += "Not readable: " + printable(status.message()) + "\n";
  }
  return text;
}

}  // namespace troupe::train
