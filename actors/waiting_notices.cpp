#include "actors/waiting_notices.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "scheduler/client/actor_words.h"

namespace troupe::detail {
namespace {

constexpr std::size_t kLinesMax = 3;
constexpr std::size_t kNamesMax = 3;  // in a line

// Nobody is told of one that was created to wait for nodes that may never come.
bool may_wait(const wire::ActorInfo& actor) {
  return !actor.awaits_nodes && (actor.state == wire::ActorState::kPending ||
                                 actor.state == wire::ActorState::kRestarting);
}

// "a, b, c and 4 more wait"
std::string who_wait(const std::vector<const wire::ActorInfo*>& actors) {
  std::string text;
  for (std::size_t i = 0; i < std::min(actors.size(), kNamesMax); ++i) {
    if (i > 0) text += i + 1 == actors.size() ? " and " : ", ";
    text += scheduler::actor_label(*actors[i]);
  }
  if (actors.size() > kNamesMax) text += fmt::format(" and {} more", actors.size() - kNamesMax);
  return text + (actors.size() == 1 ? " waits" : " wait");
}

}  // namespace

std::vector<std::string> lines_of_waiting(const std::vector<wire::ActorInfo>& actors,
                                          bool name_command) {
  // In the order of the list.
  std::vector<std::pair<std::string, std::vector<const wire::ActorInfo*>>> by_reason;
  for (const wire::ActorInfo& actor : actors) {
    const auto same = std::find_if(by_reason.begin(), by_reason.end(),
                                   [&](const auto& r) { return r.first == actor.pending_why; });
    if (same != by_reason.end()) {
      same->second.push_back(&actor);
    } else {
      by_reason.push_back({actor.pending_why, {&actor}});
    }
  }
  std::vector<std::string> lines;
  std::size_t untold = 0;
  for (const auto& [why, those] : by_reason) {
    if (lines.size() == kLinesMax) {
      untold += those.size();
      continue;
    }
    std::string line = fmt::format("{}: {}", who_wait(those), why);
    if (name_command) {
      const wire::ActorInfo& first = *those.front();
      line += fmt::format(" ('troupe why {}' tells it again)",
                          first.name.empty() ? first.actor_id.brief() : first.name);
    }
    lines.push_back(std::move(line));
  }
  if (untold > 0) {
    lines.push_back(fmt::format("{} more actors wait for other things{}", untold,
                                name_command ? ": 'troupe actors' lists them" : ""));
  }
  return lines;
}

std::shared_ptr<WaitingNotices> WaitingNotices::make(net::EventLoop& loop, Options options) {
  return std::shared_ptr<WaitingNotices>(new WaitingNotices(loop, std::move(options)));
}

void WaitingNotices::updated(const wire::ActorInfo& actor) {
  const auto known = waits_.find(actor.actor_id);
  if (!may_wait(actor)) {
    if (known != waits_.end()) waits_.erase(known);
    return;
  }
  if (known != waits_.end() && known->second.generation == actor.generation) return;
  waits_[actor.actor_id] = {actor.generation, loop_.clock().now(), false};
  arm();
}

// For the one that waits longest of those that nothing was said of.
void WaitingNotices::arm() {
  if (busy_) return;
  std::optional<TimePoint> first;
  for (const auto& [id, wait] : waits_) {
    if (!wait.told && (!first || wait.since < *first)) first = wait.since;
  }
  if (!first) return;
  busy_ = true;
  const Deadline due = Deadline::at(*first + options_.patience);
  loop_.call_after(due.remaining(loop_.clock().now()), [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->on_timer();
  });
}

void WaitingNotices::on_timer() {
  busy_ = false;
  const TimePoint now = loop_.clock().now();
  const bool due = std::any_of(waits_.begin(), waits_.end(), [&](const auto& entry) {
    return !entry.second.told && entry.second.since + options_.patience <= now;
  });
  if (!due) return arm();
  busy_ = true;
  options_.ask([weak = weak_from_this()](const Actors& actors) {
    if (auto self = weak.lock()) self->tell(actors);
  });
}

void WaitingNotices::tell(const Actors& actors) {
  busy_ = false;
  const TimePoint now = loop_.clock().now();
  std::map<ActorId, Wait> still;
  std::vector<wire::ActorInfo> waiting;
  if (actors.ok()) {
    for (const wire::ActorInfo& actor : *actors) {
      const auto known = waits_.find(actor.actor_id);
      if (known == waits_.end() || !may_wait(actor) || actor.pending_why.empty()) continue;
      Wait wait = known->second;
      // With the first go those that came soon after it: what waits together is told together.
      if (!wait.told && wait.since + options_.patience / 2 <= now) {
        wait.told = true;
        waiting.push_back(actor);
      }
      still.emplace(actor.actor_id, wait);
    }
  }
  // The others do not wait any more; where the head could not say, nothing is said.
  waits_ = std::move(still);
  for (const std::string& line : lines_of_waiting(waiting, options_.name_command)) {
    options_.say(line);
  }
  arm();
}

}  // namespace troupe::detail
