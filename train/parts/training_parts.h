#pragma once
// The parts that a program brings (troupe/train/parts.h) as the run uses them, and a run's choice
// among them as it travels.

#include <memory>

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/objectives/objective.h"
#include "train/optimizer/optimizer.h"
#include "troupe/train/parts.h"

namespace troupe::train {

json::Value to_json(const PartChoices& choices);
Result<PartChoices> part_choices_from_json(const json::Value& value);

// kNotFound for a name that the program does not list, with those that it does.
Result<std::shared_ptr<const Objective>> make_objective(const TrainingParts& parts,
                                                        const PartChoice& choice);
Result<std::shared_ptr<const Optimizer>> make_optimizer(const TrainingParts& parts,
                                                        const PartChoice& choice);
Result<std::shared_ptr<const DataSource>> make_data_source(const TrainingParts& parts,
                                                           const PartChoice& choice);
Result<std::shared_ptr<const OwnModel>> make_own_model(const TrainingParts& parts,
                                                       const PartChoice& choice);
Result<std::shared_ptr<TrainingCallback>> make_callback(const TrainingParts& parts,
                                                        const PartChoice& choice);

}  // namespace troupe::train
