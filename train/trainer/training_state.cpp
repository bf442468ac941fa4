#include "train/trainer/training_state.h"

namespace troupe::train {
namespace {

constexpr std::uint32_t kStateVersion = 1;

memory::SegmentLayout segment_layout(const ParameterLayout& layout) {
  const auto bytes = static_cast<std::size_t>(layout.total_elements()) * sizeof(float);
  memory::SegmentLayout result("trainer state", kStateVersion);
  result.add("record", sizeof(CommitRecord))
      .add("parameters", bytes, 4096)
      .add("gradients", bytes, 4096)
      .add("exp_avg", bytes, 4096)
      .add("exp_avg_sq", bytes, 4096);
  return result;
}

}  // namespace

Result<TrainingState> TrainingState::create(const ParameterLayout& layout,
                                            const std::string& name) {
  memory::SegmentLayout regions = segment_layout(layout);
  auto segment =
      TROUPE_TRY(memory::Segment::create(name, regions.size_bytes(), memory::Populate::kNow));
  regions.write_header(segment);
  return TrainingState(std::move(regions), std::move(segment));
}

std::span<float> TrainingState::floats(std::string_view region) {
  const auto bytes = layout_.region(segment_, region);
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

CommitRecord& TrainingState::record() {
  return *reinterpret_cast<CommitRecord*>(layout_.region(segment_, "record").data());
}

}  // namespace troupe::train
