#pragma once
// The parts that a program brings to training, by name, and a run's choice among them.

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/objectives/objective.h"
#include "train/optimizer/optimizer.h"
#include "train/parts/data_source.h"
#include "train/parts/training_callback.h"

namespace troupe::train {

// Makes a part from a run's arguments; kInvalidArgument for arguments that mean nothing to it.
template <typename Part>
using PartFactory = std::function<Result<
    std::shared_ptr<std::conditional_t<std::same_as<Part, TrainingCallback>, Part, const Part>>>(
    const json::Object& arguments)>;

// The factory of a class with a constructor of `const json::Object&`, or of nothing.
template <typename Part, std::derived_from<Part> Class>
PartFactory<Part> part() {
  using Made = typename PartFactory<Part>::result_type;
  return [](const json::Object& arguments) -> Made {
    (void)arguments;
    if constexpr (std::constructible_from<Class, const json::Object&>) {
      return Made(std::make_shared<Class>(arguments));
    } else {
      static_assert(std::default_initializable<Class>,
                    "a part is made from `const json::Object& arguments`, or from nothing");
      return Made(std::make_shared<Class>());
    }
  };
}

// What a program lists: a value that its trainers' class (trainer_actor.h) and its driver share.
struct TrainingParts {
  std::map<std::string, PartFactory<Objective>> objectives;
  std::map<std::string, PartFactory<Optimizer>> optimizers;
  std::map<std::string, PartFactory<DataSource>> data_sources;
  std::map<std::string, PartFactory<TrainingCallback>> callbacks;
};

struct PartChoice {
  std::string name;
  json::Object arguments = {};
};
// What a run takes of them; without one, what its configuration says.
struct PartChoices {
  std::optional<PartChoice> objective;
  std::optional<PartChoice> optimizer;
  std::optional<PartChoice> data_source;
  std::vector<PartChoice> callbacks;
};

json::Value to_json(const PartChoices& choices);
Result<PartChoices> part_choices_from_json(const json::Value& value);

// kNotFound for a name that the program does not list, with those that it does.
Result<std::shared_ptr<const Objective>> make_part(
    const std::map<std::string, PartFactory<Objective>>& listed, const PartChoice& choice);
Result<std::shared_ptr<const Optimizer>> make_part(
    const std::map<std::string, PartFactory<Optimizer>>& listed, const PartChoice& choice);
Result<std::shared_ptr<const DataSource>> make_part(
    const std::map<std::string, PartFactory<DataSource>>& listed, const PartChoice& choice);
Result<std::shared_ptr<TrainingCallback>> make_part(
    const std::map<std::string, PartFactory<TrainingCallback>>& listed, const PartChoice& choice);

}  // namespace troupe::train
