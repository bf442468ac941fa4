#pragma once
// A model of a program's own (troupe/train/own_model.h) as the run's: its passes over units, and
// the config.json that its tensors are known by.

#include <memory>
#include <string>

#include "runtime/base/status.h"
#include "train/model/model.h"
#include "troupe/train/data_source.h"
#include "troupe/train/own_model.h"

namespace troupe::train {

// A sample of numbers as a row of a data set of tokens: one that says nothing, then the numbers'
// bits. It has one label, so that a step's loss is divided by its samples. kInvalidArgument for
// other samples.
Result<TrainingSample> row_of_values(const TrainingSample& sample, std::int64_t sample_values);

// What its config.json says. kInvalidArgument for tensors that make no sense.
Result<ModelConfig> config_of(const OwnModel& own);

// `config` is that of config_of(), or kFailedPrecondition: another build's.
Result<std::unique_ptr<Model>> make_model(std::shared_ptr<const OwnModel> own,
                                          const ModelConfig& config);

}  // namespace troupe::train
