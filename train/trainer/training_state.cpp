#include "train/trainer/training_state.h"

namespace troupe::train {
namespace {

constexpr std::uint32_t kStateVersion = 2;
constexpr std::size_t kPageBytes = 4096;

memory::SegmentLayout segment_layout(const RankLayout& layout, DType state) {
  const auto bytes = [&](Region region, std::size_t size) {
    return static_cast<std::size_t>(layout.elements(region)) * size;
  };
  memory::SegmentLayout result("trainer state", kStateVersion);
  result.add("record", sizeof(CommitRecord))
      .add("parameters", bytes(Region::kParameters, dtype_size(state)), kPageBytes)
      .add("gradients", bytes(Region::kGradients, sizeof(float)), kPageBytes)
      .add("exp_avg", bytes(Region::kOptimizer, dtype_size(state)), kPageBytes)
      .add("exp_avg_sq", bytes(Region::kOptimizer, dtype_size(state)), kPageBytes);
  return result;
}

}  // namespace

Result<TrainingState> TrainingState::create(const RankLayout& layout, DType state,
                                            const std::string& name) {
  memory::SegmentLayout regions = segment_layout(layout, state);
  auto segment =
      TROUPE_TRY(memory::Segment::create(name, regions.size_bytes(), memory::Populate::kNow));
  regions.write_header(segment);
  return TrainingState(state, std::move(regions), std::move(segment));
}

StateBuffers TrainingState::buffers() {
  const auto gradients = layout_.region(segment_, "gradients");
  return {
      .state = state_,
      .parameters = layout_.region(segment_, "parameters"),
      .gradients = {reinterpret_cast<float*>(gradients.data()), gradients.size() / sizeof(float)},
      .exp_avg = layout_.region(segment_, "exp_avg"),
      .exp_avg_sq = layout_.region(segment_, "exp_avg_sq")};
}

CommitRecord& TrainingState::record() {
  return *reinterpret_cast<CommitRecord*>(layout_.region(segment_, "record").data());
}

}  // namespace troupe::train
