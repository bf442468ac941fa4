#pragma once
// An operator table that tells each operator before it runs.

#include <functional>
#include <string_view>
#include <utility>

#include "train/progress/progress_recorder.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// Results are those of `inner`. Both outlive it; thread rules are those of the table.
class ObservedOperators final : public Operators {
 public:
  ObservedOperators(Operators& inner, ProgressRecorder& recorder)
      : inner_(inner), recorder_(recorder) {}
  // From now on `settle` runs before each operator is told: on a device that computes behind its
  // callers, so that an operator's time ends where its work does.
  void settle_by(std::function<void()> settle) { settle_ = std::move(settle); }

  bool fast_bf16() const override { return inner_.fast_bf16(); }
  bool stores_bf16() const override { return inner_.stores_bf16(); }
  Status failure() const override { return inner_.failure(); }
  void begin_block(int block) override { inner_.begin_block(block); }
  void end_block() override { inner_.end_block(); }
  bool fuses(const Gemm& gemm) override { return inner_.fuses(gemm); }
  bool supports(OperatorName name) const override { return inner_.supports(name); }
#define TROUPE_OPERATOR(name, ...)                                 \
  void name(TROUPE_PARAMETERS(__VA_ARGS__)) override {             \
    tell(without_type(#name), variant(TROUPE_NAMES(__VA_ARGS__))); \
    inner_.name(TROUPE_NAMES(__VA_ARGS__));                        \
  }
#include "train/tensor/operators.def"

 private:
  // In BLAS's words: with weights as [out, in], "nt" is a forward product, "nn" the gradient of
  // inputs, "tn" that of weights.
  static std::string_view variant(const Gemm& gemm) {
    static constexpr std::string_view kLayouts[] = {"nn", "nt", "tn", "tt"};
    return kLayouts[2 * gemm.transpose_a + gemm.transpose_b];
  }
  template <typename... Arguments>
  static std::string_view variant(const Arguments&...) {
    return {};
  }
  // cross_entropy_bf16 is cross_entropy to whoever reads of it.
  static constexpr std::string_view without_type(std::string_view name) {
    constexpr std::string_view kType = "_bf16";
    if (name.ends_with(kType)) name.remove_suffix(kType.size());
    return name;
  }
  void tell(std::string_view name, std::string_view variant) {
    if (settle_) settle_();
    recorder_.operation(name, variant);
  }

  Operators& inner_;
  ProgressRecorder& recorder_;
  std::function<void()> settle_;
};

}  // namespace troupe::train
