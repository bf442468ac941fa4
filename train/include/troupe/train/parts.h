#pragma once
// The parts that a program brings to training, by name, and a run's choice among them.
//
// A run's processes are the program again, so that parts are made where they are used: the program
// lists its classes under names, a run chooses among them by name and arguments, and every process
// that belongs to it, also one that takes a dead one's place, makes the same objects.
//
//   TrainingParts parts;
//   parts.add<FocalLoss>("focal").add<Lion>("lion").add<Sequences>("sequences");

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troupe/status.h"
#include "troupe/train/arguments.h"
#include "troupe/train/callback.h"
#include "troupe/train/data_source.h"
#include "troupe/train/objective.h"
#include "troupe/train/optimizer.h"
#include "troupe/train/own_model.h"

namespace troupe::train {

// Makes a part from a run's arguments; an error where they mean nothing to it.
template <typename Part>
using PartFactory = std::function<Result<std::shared_ptr<Part>>(const Arguments& arguments)>;
template <typename Part>
using PartFactories = std::map<std::string, PartFactory<Part>>;

// A value that the program's trainers' class and its driver share.
struct TrainingParts {
  PartFactories<TargetObjective> target_objectives;
  PartFactories<LogitsObjective> logits_objectives;
  PartFactories<ElementwiseOptimizer> optimizers;
  PartFactories<DataSource> data_sources;
  PartFactories<OwnModel> models;
  PartFactories<TrainingCallback> callbacks;

  // Lists a class with a constructor of `const Arguments&`, or of nothing. The maps above take
  // other factories.
  template <typename Class>
  TrainingParts& add(std::string name) {
    if constexpr (std::derived_from<Class, TargetObjective>) {
      target_objectives[std::move(name)] = factory<TargetObjective, Class>();
    } else if constexpr (std::derived_from<Class, LogitsObjective>) {
      logits_objectives[std::move(name)] = factory<LogitsObjective, Class>();
    } else if constexpr (std::derived_from<Class, ElementwiseOptimizer>) {
      optimizers[std::move(name)] = factory<ElementwiseOptimizer, Class>();
    } else if constexpr (std::derived_from<Class, DataSource>) {
      data_sources[std::move(name)] = factory<DataSource, Class>();
    } else if constexpr (std::derived_from<Class, OwnModel>) {
      models[std::move(name)] = factory<OwnModel, Class>();
    } else {
      static_assert(std::derived_from<Class, TrainingCallback>,
                    "a part is a TargetObjective, LogitsObjective, ElementwiseOptimizer, "
                    "DataSource, OwnModel or TrainingCallback");
      callbacks[std::move(name)] = factory<TrainingCallback, Class>();
    }
    return *this;
  }

 private:
  template <typename Part, typename Class>
  static PartFactory<Part> factory() {
    return [](const Arguments& arguments) -> Result<std::shared_ptr<Part>> {
      if constexpr (std::constructible_from<Class, const Arguments&>) {
        return std::shared_ptr<Part>(std::make_shared<Class>(arguments));
      } else {
        static_assert(std::default_initializable<Class>,
                      "a part is made from `const Arguments& arguments`, or from nothing");
        (void)arguments;
        return std::shared_ptr<Part>(std::make_shared<Class>());
      }
    };
  }
};

struct PartChoice {
  std::string name;
  Arguments arguments = {};
};
// What a run takes of them; without one, what its configuration says.
struct PartChoices {
  std::optional<PartChoice> objective = std::nullopt;
  std::optional<PartChoice> optimizer = std::nullopt;
  std::optional<PartChoice> data_source = std::nullopt;
  // Trained in place of a language model, on samples of numbers by its own loss: no objective then.
  std::optional<PartChoice> model = std::nullopt;
  std::vector<PartChoice> callbacks = {};
};

}  // namespace troupe::train
