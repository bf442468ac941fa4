#pragma once
// How operators.def, the list of operators, is read by those who generate code from it.
//
// Whoever includes the list defines TROUPE_OPERATOR(name, ...) first. In it, of a row's arguments,
//   TROUPE_PARAMETERS(__VA_ARGS__)    are the parameters of the member function of Operators,
//   TROUPE_NAMES(__VA_ARGS__)         their names, to pass them on,
//   TROUPE_C_PARAMETERS(__VA_ARGS__)  the parameters of the C function of
//   train/cuda/device/table.h, TROUPE_DESCRIBED(__VA_ARGS__)     an OperatorArgument for each, for
//   templates.
// Plain preprocessor text as far as C needs it: table.h includes this, too.

// `macro` pasted to each further argument, with commas between: LIST(A_, b(x), c(y)) is
// A_b(x), A_c(y). A row has fewer than 27 arguments.
#define TROUPE_LIST(macro, ...) __VA_OPT__(TROUPE_SCAN(TROUPE_LIST_STEP(macro, __VA_ARGS__)))
#define TROUPE_LIST_STEP(macro, first, ...) \
  macro##first __VA_OPT__(, TROUPE_LIST_AGAIN TROUPE_PARENTHESES(macro, __VA_ARGS__))
#define TROUPE_LIST_AGAIN() TROUPE_LIST_STEP
#define TROUPE_PARENTHESES ()
#define TROUPE_SCAN(...) TROUPE_SCAN9(TROUPE_SCAN9(TROUPE_SCAN9(__VA_ARGS__)))
#define TROUPE_SCAN9(...) TROUPE_SCAN3(TROUPE_SCAN3(TROUPE_SCAN3(__VA_ARGS__)))
#define TROUPE_SCAN3(...) TROUPE_SCAN1(TROUPE_SCAN1(TROUPE_SCAN1(__VA_ARGS__)))
#define TROUPE_SCAN1(...) __VA_ARGS__

#define TROUPE_PARAMETERS(...) TROUPE_LIST(TROUPE_PARAMETER_, __VA_ARGS__)
#define TROUPE_PARAMETER_reads(name, ...) ConstElements name
#define TROUPE_PARAMETER_writes(name, ...) Elements name
#define TROUPE_PARAMETER_may_write(name, ...) Elements name
#define TROUPE_PARAMETER_updates(name, ...) Elements name
#define TROUPE_PARAMETER_floats(name, ...) const float* name
#define TROUPE_PARAMETER_writes_floats(name, ...) float* name
#define TROUPE_PARAMETER_adds_sums(name, ...) float* name
#define TROUPE_PARAMETER_integers(name, ...) const std::int32_t* name
#define TROUPE_PARAMETER_size(name) std::int64_t name
#define TROUPE_PARAMETER_number(name) float name
#define TROUPE_PARAMETER_choice(type, name) type name
#define TROUPE_PARAMETER_other(type, name) type name

#define TROUPE_NAMES(...) TROUPE_LIST(TROUPE_NAME_, __VA_ARGS__)
#define TROUPE_NAME_reads(name, ...) name
#define TROUPE_NAME_writes(name, ...) name
#define TROUPE_NAME_may_write(name, ...) name
#define TROUPE_NAME_updates(name, ...) name
#define TROUPE_NAME_floats(name, ...) name
#define TROUPE_NAME_writes_floats(name, ...) name
#define TROUPE_NAME_adds_sums(name, ...) name
#define TROUPE_NAME_integers(name, ...) name
#define TROUPE_NAME_size(name) name
#define TROUPE_NAME_number(name) name
#define TROUPE_NAME_choice(type, name) name
#define TROUPE_NAME_other(type, name) name

#define TROUPE_C_PARAMETERS(...) TROUPE_LIST(TROUPE_C_PARAMETER_, __VA_ARGS__)
#define TROUPE_C_PARAMETER_reads(name, ...) const void* name
#define TROUPE_C_PARAMETER_writes(name, ...) void* name
#define TROUPE_C_PARAMETER_may_write(name, ...) void* name
#define TROUPE_C_PARAMETER_updates(name, ...) void* name
#define TROUPE_C_PARAMETER_floats(name, ...) const float* name
#define TROUPE_C_PARAMETER_writes_floats(name, ...) float* name
#define TROUPE_C_PARAMETER_adds_sums(name, ...) float* name
#define TROUPE_C_PARAMETER_integers(name, ...) const int32_t* name
#define TROUPE_C_PARAMETER_size(name) int64_t name
#define TROUPE_C_PARAMETER_number(name) float name
#define TROUPE_C_PARAMETER_choice(type, name) int32_t name

#ifdef __cplusplus

#include <cstdint>

#define TROUPE_DESCRIBED(...) TROUPE_LIST(TROUPE_DESCRIBE_, __VA_ARGS__)
#define TROUPE_DESCRIBE_reads(name, ...)                                                 \
  ::troupe::train::describe_argument<::troupe::train::ArgumentRole::kReads>(#name, name, \
                                                                            __VA_ARGS__)
#define TROUPE_DESCRIBE_writes(name, ...)                                                 \
  ::troupe::train::describe_argument<::troupe::train::ArgumentRole::kWrites>(#name, name, \
                                                                             __VA_ARGS__)
#define TROUPE_DESCRIBE_may_write(name, ...)                                                \
  ::troupe::train::describe_argument<::troupe::train::ArgumentRole::kMayWrite>(#name, name, \
                                                                               __VA_ARGS__)
#define TROUPE_DESCRIBE_updates(name, ...)                                                 \
  ::troupe::train::describe_argument<::troupe::train::ArgumentRole::kUpdates>(#name, name, \
                                                                              __VA_ARGS__)
#define TROUPE_DESCRIBE_floats(name, ...)                                                 \
  ::troupe::train::describe_argument<::troupe::train::ArgumentRole::kFloats>(#name, name, \
                                                                             __VA_ARGS__)
#define TROUPE_DESCRIBE_writes_floats(name, ...)                                          \
  ::troupe::train::describe_argument<::troupe::train::ArgumentRole::kFloats>(#name, name, \
                                                                             __VA_ARGS__)
#define TROUPE_DESCRIBE_adds_sums(name, ...)                                                \
  ::troupe::train::describe_argument<::troupe::train::ArgumentRole::kAddsSums>(#name, name, \
                                                                               __VA_ARGS__)
#define TROUPE_DESCRIBE_integers(name, ...)                                                 \
  ::troupe::train::describe_argument<::troupe::train::ArgumentRole::kIntegers>(#name, name, \
                                                                               __VA_ARGS__)
#define TROUPE_DESCRIBE_size(name) ::troupe::train::describe_argument(name)
#define TROUPE_DESCRIBE_number(name) ::troupe::train::describe_argument(name)
#define TROUPE_DESCRIBE_choice(type, name) ::troupe::train::describe_argument(name)

namespace troupe::train {

// What an operator does with an argument. The first four are activations.
enum class ArgumentRole {
  kReads,
  kWrites,
  kMayWrite,
  kUpdates,
  kFloats,
  kAddsSums,
  kIntegers,
  kValue
};

// An argument of one call as its row in the list describes it.
template <ArgumentRole kOf, typename T>
struct OperatorArgument {
  static constexpr ArgumentRole kRole = kOf;
  static constexpr bool kIsActivation = kOf <= ArgumentRole::kUpdates;
  static constexpr bool kIsWritten = kOf == ArgumentRole::kWrites ||
                                     kOf == ArgumentRole::kMayWrite ||
                                     kOf == ArgumentRole::kUpdates;

  // From the first element to the last one, what lies between rows included.
  std::int64_t extent() const { return (rows - 1) * stride + width; }

  T value{};
  const char* name = "";
  // Sums over rows: of how many rows; `width` of them.
  std::int64_t rows = 1, width = 0;
  std::int64_t stride = 0;  // elements from row to row
};

// A vector of `width`; a matrix, dense or with a stride; a number.
template <ArgumentRole kRole, typename T>
OperatorArgument<kRole, T> describe_argument(const char* name, T value, std::int64_t width) {
  return {value, name, 1, width, width};
}
template <ArgumentRole kRole, typename T>
OperatorArgument<kRole, T> describe_argument(const char* name, T value, std::int64_t rows,
                                             std::int64_t width) {
  return {value, name, rows, width, width};
}
template <ArgumentRole kRole, typename T>
OperatorArgument<kRole, T> describe_argument(const char* name, T value, std::int64_t rows,
                                             std::int64_t width, std::int64_t stride) {
  return {value, name, rows, width, stride};
}
template <typename T>
OperatorArgument<ArgumentRole::kValue, T> describe_argument(T value) {
  return {value};
}

}  // namespace troupe::train

#endif
