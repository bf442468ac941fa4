#include "actors/pipelines/stage_end.h"

#include <algorithm>
#include <chrono>

#include "actors/call_ring.h"
#include "actors/objects/object_client.h"
#include "actors/pipelines/remote_line.h"
#include "runtime/wire/object_messages.h"
#include "troupe/serialize.h"

namespace troupe::detail {

Status StageEnd::check(const StageBinding& binding) {
  TROUPE_RETURN_IF_ERROR(binding.plan.check());
  if (binding.stage >= binding.plan.stages.size() ||
      binding.actor >= binding.plan.stages[binding.stage].actors || binding.item_timeout_ms <= 0 ||
      binding.reconnect_timeout_ms <= 0 || binding.reconnect_timeout_ms > kReconnectMax.count()) {
    return error(Code::kProtocol, "a binding to no stage of its pipeline");
  }
  return {};
}

Result<std::shared_ptr<StageEnd>> StageEnd::create(StageBinding binding, UniqueFd memory,
                                                   bool keeps, const Clock& clock) {
  TROUPE_RETURN_IF_ERROR(check(binding));
  auto segment = TROUPE_TRY(memory::Segment::adopt(
      std::move(memory), PipelineMemory::bytes(binding.plan), memory::Access::kReadWrite));
  std::shared_ptr<StageEnd> end(
      new StageEnd(std::move(binding), std::move(segment), nullptr, keeps, clock));
  if (end->memory_.page().magic != kPipelineMagic) {
    return error(Code::kProtocol, "this is no pipeline's memory");
  }
  return end;
}

Result<std::shared_ptr<StageEnd>> StageEnd::create_remote(StageBinding binding, GiveFar give_far,
                                                          bool keeps, const Clock& clock) {
  TROUPE_RETURN_IF_ERROR(check(binding));
  auto segment =
      TROUPE_TRY(memory::Segment::create("troupe-pipeline", PipelineMemory::bytes(binding.plan)));
  return std::shared_ptr<StageEnd>(
      new StageEnd(std::move(binding), std::move(segment), std::move(give_far), keeps, clock));
}

StageEnd::StageEnd(StageBinding binding, memory::Segment segment, GiveFar give_far, bool keeps,
                   const Clock& clock)
    : binding_(std::move(binding)),
      segment_(std::move(segment)),
      memory_(segment_.data(), binding_.plan),
      keeps_(keeps),
      clock_(clock),
      output_(binding_.stage + 1),
      gives_result_(binding_.plan.output == output_),
      progress_(binding_.plan, memory_, binding_.stage, binding_.actor, binding_.first),
      give_far_(std::move(give_far)),
      owner_waker_(&memory_.page().owner_word),
      kept_(binding_.plan.in_flight) {
  for (const std::uint32_t stage : binding_.plan.takers(output_)) {
    takers_.push_back({stage, {}});
    takers_.back().actors.resize(binding_.plan.stages[stage].actors);
  }
}

Status StageEnd::input(std::uint32_t channel, std::uint64_t number, bool failed,
                       std::span<const std::byte> bytes) {
  const auto& inputs = binding_.plan.stages[binding_.stage].inputs;
  if (std::find(inputs.begin(), inputs.end(), channel) == inputs.end() ||
      bytes.size() > binding_.plan.item_bytes_max) {
    return error(Code::kProtocol, "an item that the stage does not take");
  }
  // The actor's thread may be reading an item that came by an earlier connection: its memory is not
  // written again.
  if (!memory_.given(channel, number)) memory_.publish(channel, number, failed, bytes);
  return {};
}

void StageEnd::go_on(GiveFar give_far, std::uint64_t first) {
  first_.store(first, std::memory_order_release);
  {
    MutexLock lock(giving_);
    give_far_ = std::move(give_far);
  }
  // What is given from here on goes there by itself; what the owner has twice it leaves out.
  for (std::uint64_t number = first; number < first + binding_.plan.in_flight; ++number) {
    if (!memory_.has(output_, number)) continue;
    const wire::Bytes references = references_of(number);
    MutexLock lock(giving_);
    give_far_locked(number, references);
  }
}

Status StageEnd::set_page(std::uint32_t stage, std::uint32_t actor, UniqueFd fd) {
  auto segment =
      TROUPE_TRY(memory::Segment::adopt(std::move(fd), kHostPageBytes, memory::Access::kReadWrite));
  MutexLock lock(giving_);
  for (Taker& taker : takers_) {
    if (taker.stage != stage || actor >= taker.actors.size()) continue;
    Taker::Page& page = taker.actors[actor];
    page.segment = std::move(segment);
    page.waker = memory::Waker(&reinterpret_cast<HostPage*>(page.segment.data())->host_word);
    // What was given before it was known, nobody has woken it for.
    (void)page.waker.wake();
    return {};
  }
  return error(Code::kProtocol, "a page of an actor that takes nothing from this stage");
}

Duration StageEnd::spin_max() const {
  const Duration said(memory_.page().spin_ns.load(std::memory_order_relaxed));
  return std::clamp(said, Duration::zero(), kRingSpin);
}

// --- taking --------------------------------------------------------------------------------------

StageStep StageEnd::look() {
  progress_.leave_out_before(first_.load(std::memory_order_acquire));
  return progress_.look();
}

bool StageEnd::readable() {
  return !detached_.load(std::memory_order_acquire) && look() != StageStep::kWait;
}

std::optional<QueuedCall> StageEnd::next() {
  while (!detached_.load(std::memory_order_acquire)) {
    const StageStep step = look();
    if (step == StageStep::kWait) break;
    const std::uint64_t number = progress_.number();
    if (step == StageStep::kPassOn) {
      publish(number, true, progress_.failure());
      progress_.taken();
      continue;
    }
    QueuedCall call{
        .caller = binding_.caller,
        .sequence = number + 1,
        .method = 0,
        .deadline = Deadline::after(std::chrono::milliseconds(binding_.item_timeout_ms), clock_),
        .arguments = {},
        .shared_arguments = {},
        .ring = nullptr,
        .keep_answer = keeps_};
    const auto arguments = progress_.arguments(call.arguments);
    if (call.arguments.empty()) call.shared_arguments = arguments;
    call.items = shared_from_this();
    memory_.begin(output_, number);
    progress_.taken();
    return call;
  }
  return std::nullopt;
}

// --- giving --------------------------------------------------------------------------------------

void StageEnd::publish(std::uint64_t number, bool failed, std::span<const std::byte> bytes) {
  MutexLock lock(giving_);
  memory_.publish(output_, number, failed, bytes);
  if (give_far_) return give_far_locked(number, {});
  for (Taker& taker : takers_) {
    Taker::Page& page = taker.actors[number % taker.actors.size()];
    if (page.segment.valid()) (void)page.waker.wake();
  }
  if (gives_result_) (void)owner_waker_.wake();
}

// Its owner publishes it, and wakes those who take it.
void StageEnd::offer(std::uint64_t number, std::span<const std::byte> bytes,
                     std::span<const std::byte> references) {
  MutexLock lock(giving_);
  if (give_far_) {
    memory_.publish(output_, number, false, bytes);
    return give_far_locked(number, references);
  }
  if (memory_.offered(output_, number)) return;
  memory_.offer(output_, number, bytes, references);
  (void)owner_waker_.wake();
}

void StageEnd::give_far_locked(std::uint64_t number, std::span<const std::byte> references) {
  const PipelineMemory::Item item = memory_.read(output_, number);
  if (references.empty()) return give_far_(number, item.failed, item.bytes, 0);
  wire::Bytes both(item.bytes.begin(), item.bytes.end());
  both.insert(both.end(), references.begin(), references.end());
  give_far_(number, item.failed, both, static_cast<std::uint32_t>(references.size()));
}

// Nothing where it refers to no objects.
wire::Bytes StageEnd::references_of(std::uint64_t number) {
  Kept before;  // goes without the lock
  MutexLock lock(giving_);
  Kept& kept = kept_[number % kept_.size()];
  if (kept.number != number) before = std::exchange(kept, {});
  if (kept.objects.empty()) return {};
  wire::HoldObjects references;
  for (const auto& one : kept.objects) {
    references.objects.push_back(static_cast<const HeldObject*>(one.get())->record);
  }
  return wire::encode(wire::ObjectMessage(std::move(references)));
}

void StageEnd::give(std::uint64_t sequence, const Result<wire::Bytes>& result) {
  const std::uint64_t max = binding_.plan.item_bytes_max;
  const std::uint64_t number = sequence - 1;
  // (Given back by a process that is the older of two, perhaps.)
  if (sequence == 0 || memory_.given(output_, number)) return;
  const wire::Bytes references = references_of(number);
  const std::uint64_t size = result.ok() ? result->size() + references.size() : 0;
  if (result.ok() && size <= max) {
    return references.empty() ? publish(number, false, *result)
                              : offer(number, *result, references);
  }
  Status why = result.status();
  if (result.ok()) {
    why = error(Code::kResourceExhausted,
                "stage '{}' gave an item of {} bytes, and the pipeline's channels hold {}: set "
                "PipelineOptions::item_bytes_max, or pass an ObjectRef",
                binding_.plan.stages[binding_.stage].name, size, max);
  }
  wire::Bytes bytes = encode_value(why.with("stage", binding_.plan.stages[binding_.stage].name));
  if (bytes.size() > max)
    bytes = encode_value(Status(why.code(), "its error was too long to tell"));
  publish(number, true, bytes);
}

void StageEnd::keep(std::uint64_t sequence, std::vector<std::shared_ptr<const void>> kept) {
  Kept before;  // goes without the lock
  MutexLock lock(giving_);
  const std::uint64_t number = sequence - 1;
  before = std::exchange(kept_[number % kept_.size()], {number, std::move(kept)});
}

Status StageEnd::send(wire::EncodedCall message, bool) {
  auto decoded =
      wire::decode_call(message.frame, message.attachment ? *message.attachment : wire::Bytes());
  if (!decoded.ok()) return decoded.status();
  if (auto* reply = std::get_if<wire::CallReply>(&*decoded)) {
    give(reply->sequence, reply->status.ok() ? Result<wire::Bytes>(std::move(reply->result))
                                             : Result<wire::Bytes>(reply->status));
  }
  return {};
}

}  // namespace troupe::detail
