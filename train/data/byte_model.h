#pragma once
// A model of bytes that sees the two bytes before: the yardstick for bits per byte of a language
// model.
//
// Witten–Bell interpolation: with n occurrences of a context and t different bytes behind it,
// p(b | context) = (count(b) + t · p(b | shorter context)) / (n + t); below the empty context every
// byte has 1/256.

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe::train {

class ByteModel {
 public:
  ByteModel();
  // Counts a text. Texts are independent: a context never reaches into the one before.
  void train(std::string_view text);
  // −log2 p of a whole text; divide by its size for bits per byte.
  double bits(std::string_view text) const;

 private:
  struct Context {
    std::uint64_t total = 0;
    std::uint32_t distinct = 0;
  };
  double probability(int order, std::uint32_t history, unsigned char byte) const;

  // By order: contexts by the bytes before (big-endian), counts by those and the byte.
  std::array<std::vector<Context>, 3> contexts_;
  std::array<std::unordered_map<std::uint32_t, std::uint64_t>, 3> counts_;
};

}  // namespace troupe::train
