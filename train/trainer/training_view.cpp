#include "troupe/train/training_view.h"

#include <cstring>

#include "train/tensor/convert.h"
#include "train/trainer/rank_parts.h"
#include "train/trainer/sharding_setup.h"
#include "train/trainer/state_io.h"

namespace troupe::train {

std::string TrainingView::run() const { return parts_.options.run; }
int TrainingView::rank() const { return parts_.rank; }
std::int64_t TrainingView::step() const { return parts_.step(); }
std::int64_t TrainingView::total_steps() const { return parts_.total_steps(); }
FinishedStep TrainingView::last_step() const { return told_step(parts_.last_step_record()); }
bool TrainingView::has_own_data() const { return parts_.own_data != nullptr; }
std::string TrainingView::data_arguments() const {
  return std::string(parts_.transaction().record().data());
}

Result<std::vector<ParameterValues>> TrainingView::weights() const {
  RankParts& f = parts_;
  const RankLayout* layout = f.layout.get();
  std::optional<RankLayout> whole;
  if (!layout->sharded(Region::kParameters)) {
    const Strategy strategy = TROUPE_TRY(strategy_of(f.config()));
    whole.emplace(f.model->model_layout(), strategy, TROUPE_TRY(make_mesh(strategy, 1, 1, 0, 0)),
                  0);
    layout = &*whole;
  }
  std::vector<TensorPiece> pieces = weight_pieces(
      f.model->model_layout(), *layout, f.state().kept(), f.engine_options.compute.frozen);
  HeldPieces held;
  TROUPE_RETURN_IF_ERROR(held.hold(f.rank_compute->kept_access(), {pieces}));
  std::vector<ParameterValues> weights;
  for (const TensorPiece& piece : pieces) {
    ParameterValues& values = weights.emplace_back();
    values.name = piece.name;
    values.shape = piece.shape;
    values.begin = piece.begin;
    values.values.resize(static_cast<std::size_t>(piece.end - piece.begin));
    if (piece.dtype == DType::kF32) {
      std::memcpy(values.values.data(), piece.data.data(), piece.data.size());
    } else {
      for (std::size_t i = 0; i < values.values.size(); ++i) {
        std::uint16_t word = 0;
        std::memcpy(&word, piece.data.data() + i * sizeof word, sizeof word);
        values.values[i] = bf16_to_float(word);
      }
    }
  }
  return weights;
}

}  // namespace troupe::train
