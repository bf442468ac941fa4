#include "train/cuda/operators/transacted_update.h"

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

static_assert(TROUPE_CUDA_CHUNK_ELEMENTS == kUpdateElements);

constexpr std::int64_t kLogAlignBytes = 256;

// Blocks that update at a time. Each has two slots, which it uses in turns: while it changes one
// chunk it saves the next. They are there to stay in the L2 cache, so that the log costs little of
// the memory's rate. An H200 (132 multiprocessors, 50 MB of L2) runs four blocks a multiprocessor
// over fp32 states (kUpdateBlocks of ../library/optimizer.cu): 528 blocks, 528 · 2 · 12 KiB = 12.4
// MiB of slots. Until a line of them is written again, two chunks of every block have passed: 28
// bytes an element (12 of a slot, 12 of the state, 4 of the gradient), 30 MB in all. The 17 MB of
// state and gradients are loaded and stored as what is to be evicted first; what is left fits even
// the half of the cache that is near a multiprocessor. bf16 states have half of the bytes and five
// blocks: 7.7 MiB. The numbers here are constant, so that a plan knows them without a device: for
// 160 multiprocessors, which is more than any GPU has now; on a wider one fewer blocks run than
// could. 15 MiB for fp32, 9.4 for bf16.
std::int64_t writers_of(DType state) { return state == DType::kBF16 ? 800 : 640; }

std::int64_t slots_of(DType state) { return writers_of(state) * TROUPE_CUDA_UNDO_SLOTS_PER_WRITER; }

std::int64_t aligned_bytes(std::int64_t bytes) {
  return (bytes + kLogAlignBytes - 1) / kLogAlignBytes * kLogAlignBytes;
}

std::int64_t mark_bytes(std::int64_t chunks) {
  return aligned_bytes(chunks * static_cast<std::int64_t>(sizeof(std::uint64_t)));
}

std::int64_t header_bytes(DType state) { return slots_of(state) * TROUPE_CUDA_UNDO_HEADER_BYTES; }

std::int64_t chunks_of(std::span<const UpdateRange> ranges) {
  std::int64_t chunks = 0;
  for (const UpdateRange& range : ranges) {
    TROUPE_CHECK(range.elements % kUpdateElements == 0, "{} elements", range.elements);
    chunks += range.elements / kUpdateElements;
  }
  return chunks;
}

}  // namespace

std::int64_t TransactedUpdate::log_bytes(std::int64_t chunks, DType state) {
  const std::int64_t saved =
      slots_of(state) * 3 * kUpdateElements * static_cast<std::int64_t>(dtype_size(state));
  return mark_bytes(chunks) + header_bytes(state) + saved;
}

std::int64_t TransactedUpdate::scratch_bytes(std::int64_t ranges, const ParameterGroups& groups) {
  return aligned_bytes(ranges * static_cast<std::int64_t>(sizeof(TroupeCudaUpdateRange))) +
         aligned_bytes(std::ssize(groups.ranges()) *
                       static_cast<std::int64_t>(sizeof(TroupeCudaDecayEnd)));
}

TransactedUpdate::TransactedUpdate(CudaStream& stream, const UpdateTarget& target,
                                   std::span<std::byte> log, std::span<std::byte> scratch)
    : stream_(&stream), scratch_(scratch) {
  const std::int64_t chunks = chunks_of(target.ranges);
  const auto bytes = [](std::span<std::byte> memory) {
    return static_cast<std::int64_t>(memory.size());
  };
  TROUPE_CHECK(bytes(log) >= log_bytes(chunks, target.state));
  TROUPE_CHECK(bytes(scratch) >= scratch_bytes(std::ssize(target.ranges), *target.groups));
  for (const std::span<std::byte> memory : {log, scratch})
    TROUPE_CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % kLogAlignBytes == 0);
  const std::int64_t marks = mark_bytes(chunks);
  forgotten_ = log.first(static_cast<std::size_t>(marks + header_bytes(target.state)));
  update_.adamw.state_type = target.state == DType::kBF16 ? TROUPE_CUDA_BF16 : TROUPE_CUDA_F32;
  update_.parameters = target.parameters;
  update_.gradients = target.gradients;
  update_.first_moments = target.first_moments;
  update_.second_moments = target.second_moments;
  update_.range_count = std::ssize(target.ranges);
  update_.decay_count = std::ssize(target.groups->ranges());
  update_.chunks = chunks;
  update_.marks = reinterpret_cast<std::uint64_t*>(log.data());
  update_.undo = log.data() + marks;
  update_.writers = writers_of(target.state);
}

Result<TransactedUpdate> TransactedUpdate::create(CudaStream& stream, const UpdateTarget& target,
                                                  std::span<std::byte> log,
                                                  std::span<std::byte> scratch) {
  TransactedUpdate made(stream, target, log, scratch);
  TROUPE_RETURN_IF_ERROR(made.upload(target));
  return made;
}

Status TransactedUpdate::upload(const UpdateTarget& target) {
  std::vector<TroupeCudaUpdateRange> ranges;
  std::int64_t chunk = 0;
  for (const UpdateRange& range : target.ranges) {
    ranges.push_back({.first_chunk = chunk,
                      .flat = range.flat,
                      .parameters = range.parameters,
                      .gradients = range.gradients,
                      .moments = range.slots});
    chunk += range.elements / kUpdateElements;
  }
  std::vector<TroupeCudaDecayEnd> decays;
  for (const ParameterGroups::Range& range : target.groups->ranges())
    decays.push_back({.end = range.end, .decays = target.groups->of(range).decays ? 1 : 0});
  if (!target.ranges.empty()) {
    const UpdateRange& last = target.ranges.back();
    TROUPE_CHECK(target.groups->end() >= last.flat + last.elements,
                 "parameter groups do not cover what is updated");
  }
  const CudaDevice& device = *stream_->device();
  std::byte* to = scratch_.data();
  // From ordinary memory of the host: done when the call returns, which has no deadline. So what is
  // before it on the stream is waited for here.
  TROUPE_RETURN_IF_ERROR(stream_->wait("what comes before the optimizer's tables"));
  const auto put = [&](const void* from, std::size_t size) -> Status {
    const auto bytes = static_cast<std::int64_t>(size);
    std::byte* const at = to;
    to += aligned_bytes(bytes);
    if (bytes == 0) return {};
    return device.status(device.table().copy(stream_->get(), from, at, bytes),
                         "the optimizer's tables");
  };
  update_.ranges = reinterpret_cast<const TroupeCudaUpdateRange*>(to);
  TROUPE_RETURN_IF_ERROR(put(ranges.data(), ranges.size() * sizeof(TroupeCudaUpdateRange)));
  update_.decays = reinterpret_cast<const TroupeCudaDecayEnd*>(to);
  TROUPE_RETURN_IF_ERROR(put(decays.data(), decays.size() * sizeof(TroupeCudaDecayEnd)));
  return stream_->wait("the optimizer's tables");
}

Status TransactedUpdate::enqueue(const AdamWStep& step, std::int64_t number) {
  TROUPE_CHECK(number >= 1, "update {}", number);
  if (update_.chunks == 0) return {};
  const AdamWFactors factors(step, {.decays = true});
  TroupeCudaUpdate update = update_;
  update.adamw.beta1_rest = factors.beta1_rest;
  update.adamw.beta2 = factors.beta2;
  update.adamw.beta2_rest = factors.beta2_rest;
  update.adamw.step_size = factors.step_size;
  update.adamw.root_correction = factors.root_correction;
  update.adamw.epsilon = factors.epsilon;
  update.adamw.keep = factors.keep;
  update.adamw.round_randomly = factors.rounding_key.has_value();
  update.adamw.seed = factors.rounding_key.value_or(0);
  update.gradient_scale = factors.gradient_scale;
  update.step = static_cast<std::uint64_t>(number);
  const CudaDevice& device = *stream_->device();
  return device.status(device.table().adamw_transacted(stream_->get(), &update), "AdamW");
}

Status TransactedUpdate::forget() {
  const CudaDevice& device = *stream_->device();
  TROUPE_RETURN_IF_ERROR(
      device.status(device.table().fill(stream_->get(), forgotten_.data(), 0,
                                        static_cast<std::int64_t>(forgotten_.size())),
                    "clearing the optimizer's log"));
  return stream_->wait("clearing the optimizer's log");
}

}  // namespace troupe::train
