#include "train/trainer/peer_links.h"
#include "troupe/log.h"
#include "troupe/raw_connection.h"

#include <algorithm>
#include <charconv>

namespace troupe::train {
namespace {

// How long one attempt to reach a peer lasts before `cancelled` is looked at again.
constexpr auto kAttempt = std::chrono::milliseconds(500);
// When it is first told whom it waits for, and how often it is told again.
constexpr auto kTellAfter = std::chrono::seconds(5);
constexpr auto kTellEvery = std::chrono::seconds(10);

class SlowMeeting {
 public:
  SlowMeeting(Deadline deadline, const std::function<void(const std::string&)>& say)
      : deadline_(deadline), say_(say), next_(Deadline::after(kTellAfter)) {}
  // Until when to wait before look() again.
  Deadline next() const { return Deadline::at(std::min(next_.time(), deadline_.time())); }
  void look(int rank, int peer, const std::string& why) {
    if (!next_.passed()) return;
    next_ = Deadline::after(kTellEvery);
    const auto left = std::chrono::duration_cast<std::chrono::seconds>(deadline_.remaining());
    say_(
        fmt::format("ranks {} and {} have not met{}; they try on for another {} s: is the network "
                    "between their "
                    "machines cut?",
                    peer, rank, why.empty() ? why : " (" + why + ")", left.count()));
  }

 private:
  const Deadline deadline_;
  const std::function<void(const std::string&)>& say_;
  Deadline next_;
};

// The two numbers at the end of "actor/ID/comm/GENERATION/RANK".
bool parse_target(const std::string& target, std::uint64_t& generation, int& rank) {
  const auto second = target.rfind('/');
  if (second == std::string::npos || second == 0) return false;
  const auto first = target.rfind('/', second - 1);
  if (first == std::string::npos) return false;
  const char* data = target.data();
  const auto a = std::from_chars(data + first + 1, data + second, generation);
  const auto b = std::from_chars(data + second + 1, data + target.size(), rank);
  return a.ec == std::errc() && a.ptr == data + second && b.ec == std::errc() &&
         b.ptr == data + target.size();
}

}  // namespace

PeerLinks::PeerLinks(ActorContext& context) : context_(context) {
  context_.accept_connections(kCommunicatorPurpose,
                              [this](ByteStream stream, std::string target, bool same_node) {
                                accepted(std::move(stream), target, same_node);
                              });
}

void PeerLinks::accepted(ByteStream stream, const std::string& target, bool same_node) {
  std::uint64_t generation = 0;
  int rank = 0;
  if (!parse_target(target, generation, rank)) {
    context_.log().warning("a connection with the target '{}' was dropped", target);
    return;
  }
  MutexLock lock(mutex_);
  waiting_.insert_or_assign(Key{generation, rank}, Accepted{std::move(stream), same_node});
  changed_.notify_all();
}

void PeerLinks::wake() {
  MutexLock lock(mutex_);
  changed_.notify_all();
}

Result<std::vector<collective::PeerLink>> PeerLinks::form(
    const GenerationPlan& plan, int rank, const std::atomic<bool>& cancelled, Deadline deadline,
    const std::function<void(const std::string&)>& say) {
  SlowMeeting slow(deadline, say);
  const auto given_up = [] {
    return error(Code::kAborted, "the generation was aborted while its ranks met");
  };
  std::vector<collective::PeerLink> links;
  for (int peer = 0; peer < rank; ++peer) {
    const std::string purpose =
        fmt::format("{}/{}/{}", kCommunicatorPurpose, plan.generation, rank);
    for (;;) {
      if (cancelled) return given_up();
      const auto attempt =
          Deadline::at(std::min(deadline.time(), Deadline::after(kAttempt).time()));
      auto connected =
          context_.connect_to(plan.ranks[static_cast<std::size_t>(peer)], purpose, attempt);
      if (connected.ok()) {
        links.push_back({peer, connected->same_node, std::move(connected->stream)});
        break;
      }
      const bool may_come = connected.status().code() == Code::kDeadlineExceeded ||
                            connected.status().code() == Code::kUnavailable;
      if (!may_come || deadline.passed()) return connected.status().with("peer", peer);
      slow.look(rank, peer, connected.status().message());
    }
  }
  const int world_size = static_cast<int>(plan.ranks.size());
  MutexLock lock(mutex_);
  // Whoever belongs to a generation before this one gave up long ago.
  std::erase_if(waiting_, [&](const auto& entry) { return entry.first.first < plan.generation; });
  for (int peer = rank + 1; peer < world_size; ++peer) {
    const Key key{plan.generation, peer};
    const auto may_go_on = [&]() TROUPE_NO_ANALYSIS { return cancelled || waiting_.contains(key); };
    bool came = false;
    while (!came && !deadline.passed()) {
      came = changed_.wait_until(mutex_, slow.next(), may_go_on);
      if (!came) slow.look(rank, peer, "");
    }
    if (cancelled) return given_up();
    if (!came) {
      return error(Code::kDeadlineExceeded, "rank {} did not connect to rank {}", peer, rank)
          .with("peer", peer);
    }
    auto node = waiting_.extract(key);
    links.push_back({peer, node.mapped().same_node, std::move(node.mapped().stream)});
  }
  return links;
}

}  // namespace troupe::train
