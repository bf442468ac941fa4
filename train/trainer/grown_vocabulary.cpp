#include "train/trainer/grown_vocabulary.h"

#include <algorithm>
#include <cmath>

#include "train/model/initialize.h"

namespace troupe::train {
namespace {

// The mean of rows in fp32, summed in fp64 in the order given.
template <typename Rows>
std::vector<float> mean_of(std::span<const float> matrix, std::int64_t width, const Rows& rows) {
  std::vector<double> sums(static_cast<std::size_t>(width));
  std::int64_t count = 0;
  for (const std::int64_t row : rows) {
    const auto values = matrix.subspan(static_cast<std::size_t>(row * width), sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
    ++count;
  }
  std::vector<float> mean;
  for (const double sum : sums)
    mean.push_back(static_cast<float>(sum / static_cast<double>(count)));
  return mean;
}

}  // namespace

json::Value GrownVocabulary::to_json() const {
  json::Array rows;
  for (const auto& [row, tokens] : described)
    rows.push_back(json::Array{json::Value(row), json::Array(tokens.begin(), tokens.end())});
  return {{"rows_before", rows_before},
          {"seed", seed},
          {"described", std::move(rows)},
          {"described_noise", described_noise}};
}

Result<std::optional<GrownVocabulary>> GrownVocabulary::from_json(const json::Value* value) {
  if (!value || value->is_null()) return std::optional<GrownVocabulary>();
  GrownVocabulary out;
  const auto* seed = json::find(*value, "seed");
  const auto* rows = json::find(*value, "described");
  out.rows_before = json::find_integer(*value, "rows_before").value_or(0);
  if (out.rows_before < 1 || !seed || !seed->is_number() || !rows || !rows->is_array())
    return error(Code::kDataLoss, "what a vocabulary grew by arrived damaged");
  out.seed = seed->to_number<std::uint64_t>();
  out.described_noise = json::find_bool(*value, "described_noise").value_or(false);
  for (const auto& entry : rows->get_array()) {
    const auto* pair = entry.if_array();
    const auto* tokens = pair && pair->size() == 2 ? (*pair)[1].if_array() : nullptr;
    if (!tokens || !(*pair)[0].is_int64() || (*pair)[0].get_int64() < out.rows_before)
      return error(Code::kDataLoss, "what a vocabulary grew by arrived damaged");
    auto& [row, ids] = out.described.emplace_back();
    row = (*pair)[0].get_int64();
    for (const auto& token : *tokens) {
      const std::int64_t id = token.is_int64() ? token.get_int64() : -1;
      if (id < 0 || id >= out.rows_before)
        return error(Code::kDataLoss, "what a vocabulary grew by arrived damaged");
      ids.push_back(id);
    }
  }
  return std::optional(std::move(out));
}

void GrownVocabulary::fill(std::span<float> matrix, std::int64_t width, std::string_view name,
                           std::span<const float> embedding) const {
  const std::int64_t before = rows_before * width;
  const auto added = matrix.subspan(static_cast<std::size_t>(before));
  ParameterInfo noise{.name = std::string(name), .elements = std::ssize(matrix)};
  initialize_parameter(noise, 1.0 / std::sqrt(static_cast<double>(width)), seed, before, added);
  std::vector<std::int64_t> all;
  for (std::int64_t row = 0; row < rows_before; ++row) all.push_back(row);
  const std::vector<float> mean = mean_of(matrix, width, all);
  for (std::int64_t row = rows_before; row * width < std::ssize(matrix); ++row) {
    const auto values = matrix.subspan(static_cast<std::size_t>(row * width), mean.size());
    const auto told = std::find_if(described.begin(), described.end(),
                                   [&](const auto& one) { return one.first == row; });
    const bool is_told = told != described.end() && !told->second.empty();
    const auto middle = is_told ? mean_of(embedding, width, told->second) : mean;
    if (told != described.end() && !described_noise) std::fill(values.begin(), values.end(), 0.0f);
    for (std::size_t i = 0; i < mean.size(); ++i) values[i] += middle[i];
  }
}

}  // namespace troupe::train
