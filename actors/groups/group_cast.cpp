// A call of all members of a group: those that share a host process get it in one message.

#include <unordered_map>
#include <utility>

#include "actors/actor_channel.h"
#include "actors/client.h"
#include "actors/session/light_batch.h"
#include "runtime/base/status.h"
#include "troupe/detail/group.h"
#include "troupe/detail/light_actor.h"

namespace troupe::detail {

// What one message is for: a member, or several of one host. Owned by the call under way, which
// answers it once, or abandons it.
class GroupCast::Part final : public CallSink, public Cancellable {
 public:
  Part(std::shared_ptr<GroupCast> cast, const GroupMember& first, std::vector<std::uint32_t> ranks)
      : cast_(std::move(cast)),
        member_(first),
        ranks_(std::move(ranks)),
        line_(cast_->group().client(), member_.channel,
              batched() ? kNoLightNumber : member_.light_number) {}

  void send(const std::shared_ptr<Part>& self, const GroupCall& call) {
    if (given_up_) return abandon();
    OutgoingArguments arguments(*member_.channel, batched() ? kNoLightNumber : member_.light_number,
                                /*lends=*/true);
    const std::uint32_t method =
        batched() ? light_method(call.hosts, LightMethod::kEach) : call.method;
    batched() ? write_batch(arguments.encoder(), call)
              : call.arguments.of(ranks_.front()).append_to(arguments.encoder());
    line_.send(method, arguments, call.options, self, *this, nullptr);
    if (given_up_) line_.cancel();
  }

  void answer(const Status& status, std::span<const std::byte> result,
              Continuations* later) override {
    const auto cast = std::exchange(cast_, nullptr);
    line_.answered();
    const DecodeContext context = line_.decode_context();
    const bool failed = batched() && status.ok() ? answer_each(*cast, result, context)
                                                 : answer_all(*cast, status, result, context);
    // Of all members together: their process lets go of all that it has lent with this answer.
    if (context.intake) line_.take_references(std::move(context.intake));
    done_.store(true, std::memory_order_release);
    cast->ended(failed, later);
  }
  void abandon() override {
    answer(given_up_ ? Status(Code::kCancelled, "another member failed") : broken_promise(), {},
           nullptr);
  }
  void cancel(const char*) override { line_.cancel(); }
  // For the sake of another one's failure.
  void give_up() {
    given_up_ = true;
    line_.cancel();
  }

  bool done() const { return done_.load(std::memory_order_acquire); }
  std::uint32_t first_rank() const { return ranks_.front(); }
  std::size_t size() const { return ranks_.size(); }
  const CallLine& line() const { return line_; }

 private:
  bool batched() const { return ranks_.size() > 1; }
  void write_batch(Encoder& out, const GroupCall& call) const {
    const GroupArguments& own = call.arguments;
    LightBatch batch{.method = call.method, .one_each = own.each != nullptr, .runs = {}};
    const auto& members = cast_->group().members();
    for (const std::uint32_t rank : ranks_) batch.add(members[rank].light_number);
    batch.write(out);
    if (!batch.one_each) return own.same.append_to(out);
    for (const std::uint32_t rank : ranks_) {
      const PackedArguments arguments = own.each(rank);
      put_light_arguments(out, arguments.bytes);
      arguments.keep_in(out);
    }
  }

  Status of_member(const GroupCast& cast, std::uint32_t rank, Status status) const {
    const std::uint32_t number = cast.group().members()[rank].light_number;
    if (number != kNoLightNumber) status.with("light", number);
    return std::move(status).with("rank", rank);
  }
  bool answer_all(GroupCast& cast, const Status& status, std::span<const std::byte> result,
                  const DecodeContext& context) const {
    for (const std::uint32_t rank : ranks_) {
      cast.answer(rank, of_member(cast, rank, status), result, context);
    }
    return !status.ok();
  }
  // What the host says of each; whether one failed.
  bool answer_each(GroupCast& cast, std::span<const std::byte> results,
                   const DecodeContext& context) const {
    Decoder in(results);
    bool failed = false;
    for (const std::uint32_t rank : ranks_) {
      std::span<const std::byte> result;
      Status status = get_light_answer(in, result);
      failed |= !status.ok();
      cast.answer(rank, status.ok() ? Status() : of_member(cast, rank, std::move(status)), result,
                  context);
    }
    return failed;
  }

  std::shared_ptr<GroupCast> cast_;
  const GroupMember member_;
  const std::vector<std::uint32_t> ranks_;
  CallLine line_;
  std::atomic<bool> done_{false};
  std::atomic<bool> given_up_{false};
};

GroupCast::~GroupCast() = default;

FutureOptions GroupCast::future_options(const MemberTable& group) {
  FutureOptions options;
  const ActorChannel* before = nullptr;  // those of a host lie together
  for (const GroupMember& member : group.members()) {
    if (member.channel.get() == before) continue;
    before = member.channel.get();
    options = detail::future_options(*group.client(), *before);
    if (options.fulfilled_by) break;
  }
  return options;
}

void GroupCast::start(const GroupCall& call, FutureCore& future) {
  const auto& members = group_->members();
  const std::shared_ptr<GroupCast> self = shared_from_this();
  std::vector<std::vector<std::uint32_t>> ranks_of;
  std::unordered_map<const ActorChannel*, std::size_t> part_of;
  const ActorChannel* before = nullptr;
  std::size_t part = 0;
  for (std::uint32_t rank = 0; rank < members.size(); ++rank) {
    const ActorChannel* const channel = members[rank].channel.get();
    if (channel != before) {
      part = part_of.try_emplace(channel, ranks_of.size()).first->second;
      if (part == ranks_of.size()) ranks_of.emplace_back();
      before = channel;
    }
    ranks_of[part].push_back(rank);
  }
  fail_fast_ = call.fail_fast;
  open_ = ranks_of.size();
  for (auto& ranks : ranks_of) {
    const GroupMember& first = members[ranks.front()];
    parts_.push_back(std::make_shared<Part>(self, first, std::move(ranks)));
  }
  future.set_cancel([weak = weak_from_this()] {
    if (const auto cast = weak.lock()) cast->cancel();
  });
  for (const auto& one : parts_) one->send(one, call);
  if (const auto& ends_by = parts_.front()->line().ends_by()) future.set_ends_by(*ends_by);
}

void GroupCast::cancel() {
  for (const auto& part : parts_) {
    if (!part->done()) part->cancel("");
  }
}

void GroupCast::ended(bool failed, Continuations* later) {
  if (failed && fail_fast_.exchange(false)) {
    for (const auto& part : parts_) {
      if (!part->done()) part->give_up();
    }
  }
  if (open_.fetch_sub(1, std::memory_order_acq_rel) == 1) finish(later);
}

Status GroupCast::late() const {
  std::size_t missing = 0;
  const Part* first = nullptr;
  for (const auto& part : parts_) {
    if (part->done()) continue;
    missing += part->size();
    if (first == nullptr) first = part.get();
  }
  constexpr const char* kWhat = "no result before the deadline of get()";
  std::optional<Status> why = first != nullptr ? first->line().late(kWhat) : std::nullopt;
  Status status = why ? std::move(*why) : Status(Code::kDeadlineExceeded, kWhat);
  if (first == nullptr) return status;
  return status.prefixed(fmt::format("{} of {} members have not answered; {}", missing,
                                     group_->members().size(),
                                     group_->name_of(first->first_rank())));
}

}  // namespace troupe::detail
