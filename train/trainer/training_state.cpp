#include "train/trainer/training_state.h"

namespace troupe::train {
namespace {

constexpr std::uint32_t kStateVersion = 4;
constexpr std::size_t kPageBytes = 4096;

memory::SegmentLayout segment_layout(const RankLayout& layout, DType state,
                                     const UpdateLog::Layout& chunks) {
  const auto bytes = [&](Region region, std::size_t size) {
    return static_cast<std::size_t>(layout.elements(region)) * size;
  };
  memory::SegmentLayout result("trainer state", kStateVersion);
  result.add("transaction", sizeof(TransactionMemory))
      .add("marks", chunks.marks_bytes())
      .add("undo", chunks.undo_bytes(), kPageBytes)
      .add("parameters", bytes(Region::kParameters, dtype_size(state)), kPageBytes)
      .add("gradients", bytes(Region::kGradients, sizeof(float)), kPageBytes)
      .add("exp_avg", bytes(Region::kOptimizer, dtype_size(state)), kPageBytes)
      .add("exp_avg_sq", bytes(Region::kOptimizer, dtype_size(state)), kPageBytes);
  return result;
}

}  // namespace

TrainingState::TrainingState(DType state, memory::SegmentLayout layout,
                             const UpdateLog::Layout& chunks, memory::Segment segment,
                             bool attached)
    : state_(state),
      layout_(std::move(layout)),
      segment_(std::move(segment)),
      attached_(attached),
      zeroed_(!attached) {
  auto& memory =
      *reinterpret_cast<TransactionMemory*>(layout_.region(segment_, "transaction").data());
  transaction_ = std::make_unique<StepTransaction>(memory);
  update_log_ = std::make_unique<UpdateLog>(chunks, layout_.region(segment_, "marks"),
                                            layout_.region(segment_, "undo"));
}

Result<TrainingState> TrainingState::open(const RankLayout& layout, DType state, int threads,
                                          SurvivingMemory& memory, const std::string& name,
                                          const std::string& label) {
  const UpdateLog::Layout chunks{.chunks = ShardedOptimizer::chunk_count(layout),
                                 .chunk_bytes_max = ShardedOptimizer::chunk_bytes(state),
                                 .undo_slots = threads};
  memory::SegmentLayout regions = segment_layout(layout, state, chunks);
  if (auto found = TROUPE_TRY(memory.take(name))) {
    // Of another layout: of a run that was something else.
    if (regions.verify(*found).ok())
      return TrainingState(state, std::move(regions), chunks, std::move(*found), true);
  }
  auto segment =
      TROUPE_TRY(memory::Segment::create(label, regions.size_bytes(), memory::Populate::kNow));
  regions.write_header(segment);
  TROUPE_RETURN_IF_ERROR(memory.keep(name, segment));
  return TrainingState(state, std::move(regions), chunks, std::move(segment), false);
}

StateBuffers TrainingState::buffers() {
  const auto gradients = layout_.region(segment_, "gradients");
  return {
      .state = state_,
      .parameters = layout_.region(segment_, "parameters"),
      .gradients = {reinterpret_cast<float*>(gradients.data()), gradients.size() / sizeof(float)},
      .exp_avg = layout_.region(segment_, "exp_avg"),
      .exp_avg_sq = layout_.region(segment_, "exp_avg_sq"),
      .segment = &segment_};
}

}  // namespace troupe::train
