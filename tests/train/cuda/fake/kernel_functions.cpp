// The library's own launchers and kernels in place of train/cpu, where the options ask for them:
// the fake's function looks at the arguments, the library's enqueues the work.

#include <cstddef>
#include <cstring>

#include "runtime/base/check.h"
#include "tests/train/cuda/fake/fake_launch.h"
#include "train/cuda/library/launches.h"

namespace troupe::tests::fake {
namespace {

const TroupeCudaTable& library_table() {
  static const TroupeCudaTable table = [] {
    TroupeCudaTable made{};
    train::cuda::fill_elementwise(made);
    train::cuda::fill_norms(made);
    train::cuda::fill_losses(made);
    train::cuda::fill_attention(made);
    train::cuda::fill_attention_dropout(made);
    train::cuda::fill_attention_mask(made);
    train::cuda::fill_optimizer(made);
    train::cuda::fill_fp8(made);
    return made;
  }();
  return table;
}

bool over_kernels() { return state().options().kernels != FakeKernels::kNone; }

template <auto kFunction>
struct Composed;
template <class... Args, int (*TroupeCudaTable::*kFunction)(TroupeCudaStream*, Args...)>
struct Composed<kFunction> {
  static inline int (*fake)(TroupeCudaStream*, Args...) = nullptr;

  static int call(TroupeCudaStream* stream, Args... args) {
    if (!over_kernels()) return fake(stream, args...);
    {
      const OnlyChecking checking;
      if (const int code = fake(stream, args...)) return code;
    }
    return (library_table().*kFunction)(stream, args...);
  }
};

template <auto... kFunctions>
void compose(TroupeCudaTable& table) {
  ((Composed<kFunctions>::fake = table.*kFunctions, table.*kFunctions = Composed<kFunctions>::call),
   ...);
}

// Ended in the middle it is the fake's, whose moments are those of stores and fences.
int adamw_over_kernels(TroupeCudaStream* stream, const TroupeCudaUpdate* update) {
  using Update = Composed<&TroupeCudaTable::adamw_transacted>;
  return state().ends_update() ? Update::fake(stream, update) : Update::call(stream, update);
}

// Functions of a table, and those of them that are there.
template <class F>
void for_functions(const TroupeCudaTable& table, F&& part) {
  const auto* bytes = reinterpret_cast<const char*>(&table);
  for (std::size_t at = offsetof(TroupeCudaTable, error_text); at < sizeof table;
       at += sizeof(void*)) {
    void* function = nullptr;
    std::memcpy(&function, bytes + at, sizeof function);
    part(at, function);
  }
}

}  // namespace

void compose_with_kernels(TroupeCudaTable& table) {
  const TroupeCudaTable before = table;
  using Table = TroupeCudaTable;
  compose<&Table::convert, &Table::round_to_bf16, &Table::dropout, &Table::attention_forward,
          &Table::attention_backward, &Table::attention_dropout_forward,
          &Table::attention_dropout_backward, &Table::attention_mask, &Table::embedding_forward,
          &Table::embedding_backward, &Table::cross_entropy, &Table::adamw,
          &Table::adamw_transacted, &Table::tile_sums_of_squares, &Table::tree_sum,
          &Table::quantize>(table);
  // What the library has no kernel of, this GPU does not support either.
#define TROUPE_OPERATOR(name, ...) \
  if (library_table().name)        \
    compose<&Table::name>(table);  \
  else                             \
    table.name = nullptr;
#define TROUPE_TRANSLATED_OPERATOR(name, ...)
#include "train/tensor/operators.def"
  table.adamw_transacted = adamw_over_kernels;
  table.row_sum_scratch_bytes = library_table().row_sum_scratch_bytes;
  table.attention_scratch_bytes = library_table().attention_scratch_bytes;
  table.embedding_scratch_bytes = library_table().embedding_scratch_bytes;
  table.quantize_scratch_bytes = library_table().quantize_scratch_bytes;
  // Nothing of the library's was forgotten.
  for_functions(library_table(), [&](std::size_t at, const void* of_library) {
    void *now = nullptr, *then = nullptr;
    std::memcpy(&now, reinterpret_cast<const char*>(&table) + at, sizeof now);
    std::memcpy(&then, reinterpret_cast<const char*>(&before) + at, sizeof then);
    TROUPE_CHECK(!of_library || now != then || now == of_library,
                 "the function at byte {} of the table is the library's, and not composed", at);
  });
}

}  // namespace troupe::tests::fake
