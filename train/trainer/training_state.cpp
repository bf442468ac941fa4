#include "train/trainer/training_state.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "train/sharding/cuda_optimizer_device.h"
#include "train/sharding/tile_sums.h"

namespace troupe::train {
namespace {

constexpr std::uint32_t kStateVersion = 7;
constexpr std::uint32_t kDeviceStateVersion = 3;
constexpr std::size_t kPageBytes = 4096;
// In memory that survives.
constexpr const char* kStateName = "state";
constexpr const char* kTensorsName = "state-tensors";
constexpr const char* kKeptName = "kept";

std::size_t region_bytes(const RankLayout& layout, Region region, DType type) {
  return static_cast<std::size_t>(layout.elements(region)) * dtype_size(type);
}

UpdateLog::Layout chunks_of(const RankLayout& layout, const StateOptions& options) {
  return {.chunks = ShardedOptimizer::chunk_count(layout),
          .chunk_bytes_max =
              ShardedOptimizer::chunk_bytes(options.state, options.optimizer->slots().size()),
          .undo_slots = options.threads};
}

// What the host updates. `parameters`: the region that they are.
void add_updated(memory::SegmentLayout& result, const RankLayout& layout,
                 const StateOptions& options, const UpdateLog::Layout& chunks, Region parameters) {
  result.add("marks", chunks.marks_bytes())
      .add("undo", chunks.undo_bytes(), kPageBytes)
      .add("parameters", region_bytes(layout, parameters, options.state), kPageBytes);
}

void add_slots(memory::SegmentLayout& result, const RankLayout& layout,
               const StateOptions& options) {
  for (const SlotBuffer& slot : places_of(layout, *options.optimizer, options.state))
    result.add(
        std::string(slot.name),
        slot.place ? slot.place->bytes() : region_bytes(layout, Region::kOptimizer, options.state),
        kPageBytes);
}

memory::SegmentLayout segment_layout(const RankLayout& layout, const StateOptions& options,
                                     const UpdateLog::Layout& chunks) {
  memory::SegmentLayout result(
      options.kept_of < 0 ? "trainer state" : fmt::format("kept of rank {}", options.kept_of),
      kStateVersion);
  result.add("transaction", sizeof(TransactionMemory));
  if (options.kept_of >= 0)
    result.add("sums", TileSums::bytes_of(layout.elements(Region::kOptimizer) / kTileElements));
  add_updated(result, layout, options, chunks, Region::kParameters);
  result.add("gradients", region_bytes(layout, Region::kGradients, DType::kF32), kPageBytes);
  add_slots(result, layout, options);
  if (layout.frozen())
    result.add("frozen", region_bytes(*layout.frozen(), Region::kParameters, options.frozen),
               kPageBytes);
  return result;
}

TransactionMemory& transaction_in(const memory::SegmentLayout& layout, memory::Segment& segment) {
  return *reinterpret_cast<TransactionMemory*>(layout.region(segment, "transaction").data());
}

// --- on a GPU

// Which allocation the segment's transaction is about.
struct DeviceRecord {
  std::uint64_t arena_bytes;
  std::uint64_t plan_hash;
  std::array<char, 48> device;  // its UUID
};

memory::SegmentLayout device_segment_layout(const RankLayout& layout, const StateOptions& options,
                                            const UpdateLog::Layout& chunks) {
  memory::SegmentLayout result("trainer state beside a GPU's", kDeviceStateVersion);
  result.add("transaction", sizeof(TransactionMemory)).add("record", sizeof(DeviceRecord));
  if (options.offload == Offload::kNothing) return result;
  add_updated(result, layout, options, chunks, Region::kOptimizer);
  add_slots(result, layout, options);
  return result;
}

const char* name_of(const StateOptions& options) {
  return options.kept_of < 0 ? kStateName : kKeptName;
}

DeviceRecord& record_in(const memory::SegmentLayout& layout, memory::Segment& segment) {
  return *reinterpret_cast<DeviceRecord*>(layout.region(segment, "record").data());
}

DeviceRecord record_of(const ArenaPlan& plan, const CudaDevice& device) {
  DeviceRecord record{};
  std::string text;
  for (const ArenaPlan::Part& part : plan.parts())
    text += fmt::format("{} {} {}\n", part.name, part.offset, part.bytes);
  record.plan_hash = xxh3_64(std::as_bytes(std::span(text)));
  const std::string uuid = device.info().uuid;
  std::copy_n(uuid.begin(), std::min(uuid.size(), record.device.size() - 1), record.device.begin());
  return record;
}

// What an earlier process left; nothing where there is none or where it is not this device's.
Result<std::optional<DeviceArena>> find_arena(const std::shared_ptr<CudaDevice>& device,
                                              const ArenaPlan& plan, const DeviceRecord& left,
                                              SurvivingMemory& memory, const Logger& log) {
  const DeviceRecord wanted = record_of(plan, *device);
  if (left.plan_hash != wanted.plan_hash) return std::optional<DeviceArena>();
  if (left.device != wanted.device) {
    log.warning("the state of the process before lies on GPU {}, this process has {}",
                left.device.data(), wanted.device.data());
    return std::optional<DeviceArena>();
  }
  const auto descriptor = TROUPE_TRY(memory.take_descriptor(kTensorsName));
  if (!descriptor) return std::optional<DeviceArena>();
  auto arena = DeviceArena::import(device, plan, descriptor->get(),
                                   static_cast<std::int64_t>(left.arena_bytes));
  if (!arena.ok()) {
    log.warning("the state of the process before cannot be taken over: {}",
                arena.status().to_string());
    return std::optional<DeviceArena>();
  }
  return std::optional<DeviceArena>(std::move(*arena));
}

}  // namespace

TrainingState::TrainingState(const RankLayout& rank, const StateOptions& options,
                             memory::SegmentLayout layout, memory::Segment segment, bool attached)
    : options_(options),
      layout_(std::move(layout)),
      segment_(std::move(segment)),
      attached_(attached),
      zeroed_(!attached),
      slots_(places_of(rank, *options.optimizer, options.state)) {
  transaction_ = std::make_unique<StepTransaction>(transaction_in(layout_, segment_));
}

void TrainingState::open_log(const UpdateLog::Layout& chunks) {
  update_log_ = std::make_unique<UpdateLog>(chunks, layout_.region(segment_, "marks"),
                                            layout_.region(segment_, "undo"));
}

TrainingState TrainingState::made(const RankLayout& layout, const StateOptions& options,
                                  memory::Segment segment, bool attached) {
  const UpdateLog::Layout chunks = chunks_of(layout, options);
  TrainingState opened(layout, options, segment_layout(layout, options, chunks), std::move(segment),
                       attached);
  opened.open_log(chunks);
  opened.has_frozen_ = layout.frozen() != nullptr;
  return opened;
}

Result<std::optional<TrainingState>> TrainingState::find(const RankLayout& layout,
                                                         const StateOptions& options,
                                                         SurvivingMemory& memory) {
  auto found = TROUPE_TRY(memory.take(name_of(options)));
  const auto regions = segment_layout(layout, options, chunks_of(layout, options));
  // Of another layout: of a run that was something else.
  if (!found || !regions.verify(*found).ok()) return std::optional<TrainingState>();
  return std::optional<TrainingState>(made(layout, options, std::move(*found), true));
}

Result<TrainingState> TrainingState::open(const RankLayout& layout, const StateOptions& options,
                                          SurvivingMemory& memory, const std::string& label) {
  if (auto found = TROUPE_TRY(find(layout, options, memory))) return std::move(*found);
  const auto regions = segment_layout(layout, options, chunks_of(layout, options));
  auto segment =
      TROUPE_TRY(memory::Segment::create(label, regions.size_bytes(), memory::Populate::kNow));
  regions.write_header(segment);
  TROUPE_RETURN_IF_ERROR(memory.keep(name_of(options), segment));
  return made(layout, options, std::move(segment), false);
}

Status TrainingState::drop_kept(SurvivingMemory& memory) { return memory.forget(kKeptName); }

Status TrainingState::drop(SurvivingMemory& memory) {
  for (const char* name : {kStateName, kTensorsName}) TROUPE_RETURN_IF_ERROR(memory.forget(name));
  return drop_kept(memory);
}

ArenaPlan TrainingState::device_plan(const RankLayout& layout, const StateOptions& options) {
  ArenaPlan plan;
  const auto add = [&](const std::string& part, MemoryPurpose purpose, std::size_t bytes) {
    plan.add(part, purpose, static_cast<std::int64_t>(bytes));
  };
  const bool offloads = options.offload != Offload::kNothing;
  const DType state = options.state;
  if (options.offload != Offload::kParameters) {
    add("parameters", MemoryPurpose::kParameters,
        region_bytes(layout, Region::kParameters, offloads ? options.used : state));
  }
  add("gradients", MemoryPurpose::kGradients,
      region_bytes(layout, Region::kGradients, DType::kF32));
  if (offloads) return plan;
  for (const std::string_view slot : options.optimizer->slots())
    add(std::string(slot), MemoryPurpose::kOptimizerState,
        region_bytes(layout, Region::kOptimizer, state));
  add("updates", MemoryPurpose::kOptimizerState,
      static_cast<std::size_t>(CudaOptimizerDevice::log_bytes(layout, state)));
  return plan;
}

Result<TrainingState> TrainingState::open_on_device(const RankLayout& layout,
                                                    const StateOptions& options,
                                                    std::shared_ptr<CudaDevice> device,
                                                    SurvivingMemory& memory,
                                                    const std::string& label, const Logger& log) {
  const ArenaPlan plan = device_plan(layout, options);
  const UpdateLog::Layout chunks = chunks_of(layout, options);
  const memory::SegmentLayout regions = device_segment_layout(layout, options, chunks);
  const bool offloads = options.offload != Offload::kNothing;
  std::optional<PinnedMemory> pinned;
  const auto made = [&](memory::Segment segment, DeviceArena arena, bool attached) {
    TrainingState opened(layout, options, regions, std::move(segment), attached);
    opened.arena_ = std::move(arena);
    opened.pinned_ = std::move(pinned);
    if (offloads) opened.open_log(chunks);
    return opened;
  };
  if (const auto bytes =
          static_cast<std::int64_t>(region_bytes(layout, Region::kParameters, options.used));
      options.offload == Offload::kParameters && bytes > 0) {
    pinned = TROUPE_TRY(PinnedMemory::allocate(device, bytes, "offloaded parameters"));
  }
  std::optional<memory::Segment> left;
  if (auto found = TROUPE_TRY(memory.take(kStateName)); found && regions.verify(*found).ok()) {
    if (auto arena = TROUPE_TRY(find_arena(device, plan, record_in(regions, *found), memory, log)))
      return made(std::move(*found), std::move(*arena), true);
    // What it says is of tensors that are not there: nobody must find it beside others. Where much
    // is offloaded there may be no room for a second one.
    const auto said = regions.region(*found, "transaction");
    std::memset(said.data(), 0, said.size());
    left = std::move(*found);
  }
  const bool zeroed = offloads && !left;
  const bool outlives = device->info().can_export_memory != 0;
  if (!outlives) {
    log.warning(
        "{} cannot export memory: what it holds ends with this process, and after a death the run "
        "goes on from its last checkpoint",
        device->name());
  }
  auto arena = TROUPE_TRY(DeviceArena::allocate(
      device, plan, outlives ? DeviceArena::Outlives::kProcess : DeviceArena::Outlives::kNothing));
  if (!left)
    left = TROUPE_TRY(memory::Segment::create(label, regions.size_bytes(), memory::Populate::kNow));
  memory::Segment segment = std::move(*left);
  regions.write_header(segment);
  DeviceRecord& record = record_in(regions, segment) = record_of(plan, *device);
  record.arena_bytes = static_cast<std::uint64_t>(arena.bytes());
  if (outlives) {
    const UniqueFd descriptor = TROUPE_TRY(arena.export_descriptor());
    TROUPE_RETURN_IF_ERROR(memory.keep_descriptor(kTensorsName, descriptor.get()));
    TROUPE_RETURN_IF_ERROR(memory.keep(kStateName, segment));
  }
  TrainingState opened = made(std::move(segment), std::move(arena), false);
  opened.outlives_ = outlives;
  opened.zeroed_ = zeroed;
  return opened;
}

std::span<std::byte> TrainingState::device_log() const {
  return arena_ && outlives_ ? arena_->part("updates") : std::span<std::byte>();
}

template <typename F>
std::vector<SlotBuffer> TrainingState::slots(F part) const {
  std::vector<SlotBuffer> slots;
  for (const SlotBuffer& slot : slots_) slots.push_back({slot.name, part(slot.name), slot.place});
  return slots;
}

StateBuffers TrainingState::buffers() {
  if (!arena_) {
    StateBuffers buffers = in_segment(Region::kParameters);
    buffers.gradients = {reinterpret_cast<float*>(layout_.region(segment_, "gradients").data()),
                         layout_.region(segment_, "gradients").size() / sizeof(float)};
    if (has_frozen_) buffers.frozen = layout_.region(segment_, "frozen");
    buffers.segment = &segment_;
    return buffers;
  }
  StateBuffers buffers{.state = options_.state, .gradients = arena_->part_of<float>("gradients")};
  if (options_.offload == Offload::kNothing) {
    buffers.parameters = arena_->part("parameters");
    buffers.slots = slots([&](std::string_view slot) { return arena_->part(slot); });
    return buffers;
  }
  buffers.state = options_.used;
  if (options_.offload == Offload::kOptimizer)
    buffers.parameters = arena_->part("parameters");
  else if (pinned_)
    buffers.parameters = {pinned_->data(), static_cast<std::size_t>(pinned_->size())};
  return buffers;
}

StateBuffers TrainingState::kept() {
  if (options_.offload == Offload::kNothing) return buffers();
  StateBuffers kept = in_segment(Region::kOptimizer);
  kept.gradients = buffers().gradients;
  return kept;
}

// But for gradients.
StateBuffers TrainingState::in_segment(Region parameters) {
  return {.state = options_.state,
          .parameters_region = parameters,
          .parameters = layout_.region(segment_, "parameters"),
          .gradients = {},
          .slots = slots([&](std::string_view slot) { return layout_.region(segment_, slot); })};
}

}  // namespace troupe::train
