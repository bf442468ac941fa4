#include "train/cuda/operators/launch_record.h"

#include <cstring>
#include <tuple>
#include <type_traits>

namespace troupe::train {
namespace {

// Structs that describe a call: behind an address that is good for the call alone. All of their
// bytes are fields, so that equal ones are equal words.
template <typename T>
inline constexpr bool kDescribes = false;
template <>
inline constexpr bool kDescribes<TroupeCudaGemm> = sizeof(TroupeCudaGemm) == 6 * 8 + 10 * 4;
template <>
inline constexpr bool kDescribes<TroupeCudaAlgorithm> = sizeof(TroupeCudaAlgorithm) == 9 * 8;
template <>
inline constexpr bool kDescribes<TroupeCudaAttention> = sizeof(TroupeCudaAttention) ==
                                                        9 * 8 + 2 * 4 + sizeof(void*);
template <>
inline constexpr bool kDescribes<TroupeCudaDropout> = sizeof(TroupeCudaDropout) ==
                                                      6 * 4 + 2 * sizeof(void*);
template <>
inline constexpr bool kDescribes<TroupeCudaQuantize> = sizeof(TroupeCudaQuantize) == 5 * 8 + 2 * 4;

template <typename Argument>
struct Held {
  using Target = std::remove_pointer_t<Argument>;
  static_assert(!std::is_pointer_v<Target>,
                "an array of addresses lies in the caller's memory: such a call cannot be kept");
  static constexpr bool kByValue = kDescribes<std::remove_const_t<Target>>;
  static_assert(kByValue || !(std::is_class_v<Target> && std::is_const_v<Target>),
                "say of this struct whether it describes a call");
  using Type = std::conditional_t<kByValue, std::remove_const_t<Target>, Argument>;

  static constexpr std::size_t kWords = (sizeof(Type) + 7) / 8;
  static void put(std::vector<std::uint64_t>& words, const Argument& argument) {
    const void* from = &argument;
    if constexpr (kByValue) from = argument;
    const std::size_t at = words.size();
    words.resize(at + kWords);  // with zeros: what a number leaves of a word is the same always
    std::memcpy(words.data() + at, from, sizeof(Type));
  }
  static Type take(const std::uint64_t*& at) {
    Type value;
    std::memcpy(&value, at, sizeof value);
    at += kWords;
    return value;
  }
  static Argument argument(const Type& value) {
    if constexpr (kByValue)
      return &value;
    else
      return value;
  }
};

}  // namespace

template <typename... Arguments,
          int (*TroupeCudaTable::*kFunction)(TroupeCudaStream*, Arguments...)>
struct LaunchRecord::Kept<kFunction> {
  static int call(TroupeCudaStream* stream, Arguments... arguments) {
    LaunchRecord& record = LaunchRecord::of(stream);
    if (!record.open_) return (record.library_->table().*kFunction)(record.stream_, arguments...);
    record.calls_.push_back({&Kept::replay, record.name_});
    record.words_.push_back(reinterpret_cast<std::uintptr_t>(&Kept::replay));
    (Held<Arguments>::put(record.words_, arguments), ...);
    return TROUPE_CUDA_OK;
  }
  static int replay(const TroupeCudaTable& table, TroupeCudaStream* stream,
                    const std::uint64_t*& at) {
    // Between braces the order is that of the text.
    const std::tuple<typename Held<Arguments>::Type...> held{Held<Arguments>::take(at)...};
    return std::apply(
        [&](const auto&... values) {
          return (table.*kFunction)(stream, Held<Arguments>::argument(values)...);
        },
        held);
  }
};

LaunchRecord::LaunchRecord(std::shared_ptr<const CudaLibrary> library, TroupeCudaStream* stream)
    : library_(std::move(library)),
      stream_(stream),
      table_(make_table(library_->table())),
      recording_library_(CudaLibrary::over(table_)) {}

TroupeCudaTable LaunchRecord::make_table(const TroupeCudaTable& real) {
  // Who adds a function to the table says here whether operators may call it within a block: by
  // Kept where it enqueues work, by the library's own where it takes no stream.
  // The list's operators are kept by themselves.
  constexpr std::size_t kListed =
#define TROUPE_OPERATOR(name, ...) 1 +
#define TROUPE_TRANSLATED_OPERATOR(name, ...)
#include "train/tensor/operators.def"
      0;
  static_assert(sizeof(TroupeCudaTable) == 8 + (79 + kListed) * sizeof(void*),
                "a function was added to the table");
  TroupeCudaTable table{};
  table.version = real.version;
  table.bytes = real.bytes;
  table.error_text = real.error_text;
  table.gemm_algorithms = real.gemm_algorithms;
  table.row_sum_scratch_bytes = real.row_sum_scratch_bytes;
  table.attention_scratch_bytes = real.attention_scratch_bytes;
  table.embedding_scratch_bytes = real.embedding_scratch_bytes;
  table.quantize_scratch_bytes = real.quantize_scratch_bytes;
  table.fused_attention_available = real.fused_attention_available;
  table.attention_plan_create = real.attention_plan_create;
  table.attention_plan_destroy = real.attention_plan_destroy;
  table.stream_query = query;
#define TROUPE_KEEP(function) table.function = Kept<&TroupeCudaTable::function>::call
  TROUPE_KEEP(copy);
  TROUPE_KEEP(copy_rows);
  TROUPE_KEEP(fill);
  TROUPE_KEEP(convert);
  TROUPE_KEEP(gemm);
  TROUPE_KEEP(attention_forward);
  TROUPE_KEEP(attention_backward);
  TROUPE_KEEP(attention_plan_forward);
  TROUPE_KEEP(attention_plan_backward);
  TROUPE_KEEP(attention_mask);
  TROUPE_KEEP(embedding_forward);
  TROUPE_KEEP(embedding_backward);
  TROUPE_KEEP(cross_entropy);
  TROUPE_KEEP(dropout);
  TROUPE_KEEP(attention_dropout_forward);
  TROUPE_KEEP(attention_dropout_backward);
  TROUPE_KEEP(quantize);
  TROUPE_KEEP(gemm_scaled);
  TROUPE_KEEP(gemm_fused);
#define TROUPE_OPERATOR(name, ...) \
  if (real.name) TROUPE_KEEP(name);
#define TROUPE_TRANSLATED_OPERATOR(name, ...)
#include "train/tensor/operators.def"
#undef TROUPE_KEEP
  return table;
}

void LaunchRecord::open() {
  calls_.clear();
  words_.clear();
  open_ = true;
}

int LaunchRecord::run(const char** failed) const {
  const std::uint64_t* at = words_.data();
  for (const Call& call : calls_) {
    ++at;  // the function, which call.replay is
    const int code = call.replay(library_->table(), stream_, at);
    if (code == TROUPE_CUDA_OK) continue;
    *failed = call.name;
    return code;
  }
  return TROUPE_CUDA_OK;
}

int LaunchRecord::query(TroupeCudaStream* stream) {
  LaunchRecord& record = of(stream);
  if (record.open_) {
    record.close();
    const char* failed = nullptr;
    if (const int code = record.run(&failed)) return code;
  }
  return record.library_->table().stream_query(record.stream_);
}

}  // namespace troupe::train
