#pragma once
// A model with resident units and what tests do to it.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/random.h"
#include "tests/support/safetensors_file.h"
#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"
#include "train/model/initialize.h"
#include "train/model/model.h"
#include "train/tensor/convert.h"

namespace troupe::train::tests {

using Tensors = std::map<std::string, std::vector<float>>;

// All tensors, F32 or BF16, of a well-formed safetensors file.
inline Tensors load_tensors(const std::string& path) {
  Tensors tensors;
  for (const auto& [name, stored] : troupe::tests::stored_tensors(path)) {
    std::vector<float>& out = tensors[name];
    const DType dtype = stored.dtype == "BF16" ? DType::kBF16 : DType::kF32;
    out.resize(stored.bytes.size() / dtype_size(dtype));
    REQUIRE(convert_to_float(std::as_bytes(std::span(stored.bytes)), dtype, std::span(out)).ok());
  }
  return tensors;
}

// max |a − b| / max |b|.
inline double relative_error(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  double difference = 0, greatest = 1e-30;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = std::isfinite(a[i]) ? std::max<double>(difference, std::abs(a[i] - b[i])) : 1e30;
    greatest = std::max<double>(greatest, std::abs(b[i]));
  }
  return difference / greatest;
}

// Random tokens of a vocabulary, some without a label; positions and segments of parts of 50.
struct Batch {
  Batch(std::int64_t rows, std::int64_t length, std::uint64_t vocabulary) {
    SeededRandom random(7);
    for (std::int64_t i = 0; i < rows * length; ++i) {
      ids.push_back(static_cast<std::int32_t>(random.below(vocabulary)));
      labels.push_back(random.below(4) == 0 ? kIgnoreLabel : ids.back());
      positions.push_back(static_cast<std::int32_t>(i % length % 50));
      segments.push_back(static_cast<std::int32_t>(i % length / 50));
    }
    micro = {rows, length, ids, labels, {}, {}};
  }
  std::vector<std::int32_t> ids, labels, positions, segments;
  MicroBatch micro;
};

struct ModelFixture {
  explicit ModelFixture(const ModelConfig& config, int threads = 1)
      : arena(threads),
        operators(make_cpu_operators(arena)),
        model(make_model(config, *operators)),
        parameters(static_cast<std::size_t>(model->layout().total_elements())),
        gradients(parameters.size()),
        units(model->layout(), parameters, gradients) {}

  std::span<float> slice(std::vector<float>& flat, const std::string& name) {
    const ParameterInfo* info = model->layout().find(name);
    REQUIRE(info);
    return std::span(flat).subspan(static_cast<std::size_t>(model->layout().flat_offset(*info)),
                                   static_cast<std::size_t>(info->elements));
  }
  void load(const Tensors& tensors, const std::string& prefix) {
    for (const ParameterInfo& info : model->layout().parameters()) {
      const std::vector<float>& values = tensors.at(prefix + info.name);
      const std::span<float> target = slice(parameters, info.name);
      REQUIRE(values.size() == target.size());
      std::copy(values.begin(), values.end(), target.begin());
    }
  }
  void initialize(std::uint64_t seed) {
    for (std::size_t i = 0; i < model->layout().units().size(); ++i) {
      const UnitInfo& unit = model->layout().units()[i];
      initialize_unit(model->layout(), static_cast<int>(i), model->config().initializer_range, seed,
                      std::span(parameters)
                          .subspan(static_cast<std::size_t>(unit.flat_offset),
                                   static_cast<std::size_t>(unit.elements)));
    }
  }

  Arena arena;
  std::unique_ptr<Operators> operators;
  std::unique_ptr<Model> model;
  std::vector<float> parameters, gradients;
  ResidentUnits units;
};

}  // namespace troupe::train::tests
