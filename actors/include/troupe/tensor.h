#pragma once
// Arrays of numbers with several dimensions: Tensor<T> owns its elements, TensorView<T> refers to
// somebody else's. As an argument and a result a Tensor is copied; as an object it is read in
// place:
//
//   auto weights = cluster.put(TensorView<const float>::of(values, {1000, 512}).value()).value();
//   worker.call<&Worker::learn>(weights);                    // an ObjectRef<Tensor<float>>
//
//   float Worker::learn(Object<Tensor<float>> weights) {
//     TensorView<const float> values = *weights;             // the shared memory itself
//     return values(17, 3) + values[17].values()[4];
//   }
//
// dlpack.h gives it to PyTorch, NumPy, JAX and others without a copy. Indices are not checked, as
// those of a std::span.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/codec.h"
#include "troupe/object.h"
#include "troupe/status.h"

namespace troupe {

// Numbers of elements, or distances in elements, by dimension.
using TensorShape = std::vector<std::int64_t>;
inline constexpr std::size_t kTensorDimensionsMax = 64;

namespace detail {

// The number of elements. kInvalidArgument: a negative one, too many dimensions, or more bytes than
// there can be.
Result<std::size_t> tensor_size(const TensorShape& shape, std::size_t element_bytes);
// Whether all elements lie among so many. Without strides: row by row, and they are all of them.
Status check_tensor(const TensorShape& shape, const std::optional<TensorShape>& strides,
                    std::size_t elements, std::size_t element_bytes);
TensorShape row_strides(const TensorShape& shape);
// How a tensor lies in an object: its shape, then from a multiple of kObjectAlignment on its
// elements, row by row.
std::size_t tensor_header_bytes(std::size_t rank);
void write_tensor_header(const TensorShape& shape, std::span<std::byte> into);
Result<TensorShape> read_tensor_header(std::span<const std::byte> bytes, std::size_t element_bytes);

}  // namespace detail

template <typename T>
class Tensor;

template <typename T>
class TensorView {
 public:
  TensorView() = default;  // of no elements
  // All of the elements, row by row. kInvalidArgument where the shape has not so many.
  static Result<TensorView> of(std::span<T> elements, TensorShape shape) {
    TROUPE_RETURN_IF_ERROR(detail::check_tensor(shape, std::nullopt, elements.size(), sizeof(T)));
    TensorShape strides = detail::row_strides(shape);
    return TensorView(elements.data(), std::move(shape), std::move(strides));
  }
  // Element (i, j, …) is elements[i * strides[0] + j * strides[1] + …]. kInvalidArgument where one
  // of them would lie elsewhere.
  static Result<TensorView> of(std::span<T> elements, TensorShape shape, TensorShape strides) {
    TROUPE_RETURN_IF_ERROR(detail::check_tensor(shape, strides, elements.size(), sizeof(T)));
    return TensorView(elements.data(), std::move(shape), std::move(strides));
  }
  operator TensorView<const T>() const requires(!std::is_const_v<T>) {  // NOLINT: as a pointer
    return TensorView<const T>(data_, shape_, strides_);
  }

  T* data() const { return data_; }
  const TensorShape& shape() const { return shape_; }
  const TensorShape& strides() const { return strides_; }
  std::size_t rank() const { return shape_.size(); }
  std::size_t size() const {
    std::size_t size = data_ == nullptr ? 0 : 1;
    for (const std::int64_t count : shape_) size *= static_cast<std::size_t>(count);
    return size;
  }
  // Whether the elements lie row by row without gaps.
  bool contiguous() const {
    std::int64_t expected = 1;
    for (std::size_t d = rank(); d-- > 0;) {
      if (shape_[d] != 1 && strides_[d] != expected) return size() == 0;
      expected *= shape_[d];
    }
    return true;
  }
  // Of one that is contiguous: its elements.
  std::span<T> values() const { return {data_, size()}; }

  // As many indices as dimensions.
  template <typename... I>
  T& operator()(I... index) const {
    std::int64_t at = 0;
    std::size_t d = 0;
    ((at += static_cast<std::int64_t>(index) * strides_[d++]), ...);
    return data_[at];
  }
  // One dimension less: the part with this index in the first one.
  TensorView operator[](std::int64_t index) const {
    return TensorView(data_ + index * strides_[0], {shape_.begin() + 1, shape_.end()},
                      {strides_.begin() + 1, strides_.end()});
  }
  // The part from `begin` to before `end` of a dimension.
  TensorView slice(std::size_t dimension, std::int64_t begin, std::int64_t end) const {
    TensorView part = *this;
    part.data_ += begin * strides_[dimension];
    part.shape_[dimension] = end - begin;
    return part;
  }
  // The dimensions the other way round.
  TensorView transposed() const {
    return TensorView(data_, {shape_.rbegin(), shape_.rend()},
                      {strides_.rbegin(), strides_.rend()});
  }
  // Row by row to `into`, of which it returns the end.
  std::remove_const_t<T>* copy_to(std::remove_const_t<T>* into) const {
    if (contiguous()) return std::copy_n(data_, size(), into);
    if (rank() == 1) {
      for (std::int64_t i = 0; i < shape_[0]; ++i) *into++ = data_[i * strides_[0]];
      return into;
    }
    for (std::int64_t i = 0; i < shape_[0]; ++i) into = (*this)[i].copy_to(into);
    return into;
  }

 private:
  template <typename>
  friend class TensorView;
  template <typename>
  friend class Tensor;
  friend struct ObjectLayout<Tensor<std::remove_const_t<T>>>;
  TensorView(T* data, TensorShape shape, TensorShape strides)
      : data_(data), shape_(std::move(shape)), strides_(std::move(strides)) {}

  T* data_ = nullptr;
  TensorShape shape_ = {0};
  TensorShape strides_ = {1};
};

template <typename T>
class Tensor {
  static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>, "a Tensor is of numbers");

 public:
  Tensor() = default;  // of no elements
  // Row by row. kInvalidArgument where the shape has not so many.
  static Result<Tensor> of(std::vector<T> values, TensorShape shape) {
    const auto view = TROUPE_TRY(TensorView<T>::of(std::span(values), std::move(shape)));
    return Tensor(view.shape(), std::move(values));
  }
  static Result<Tensor> zeros(TensorShape shape) {
    const std::size_t size = TROUPE_TRY(detail::tensor_size(shape, sizeof(T)));
    return Tensor(std::move(shape), std::vector<T>(size));
  }
  // A copy.
  explicit Tensor(const TensorView<const T>& view) : shape_(view.shape()), values_(view.size()) {
    view.copy_to(values_.data());
  }

  TensorView<T> view() {
    return TensorView<T>(values_.data(), shape_, detail::row_strides(shape_));
  }
  TensorView<const T> view() const {
    return TensorView<const T>(values_.data(), shape_, detail::row_strides(shape_));
  }
  operator TensorView<const T>() const { return view(); }  // NOLINT: as a std::span
  const TensorShape& shape() const { return shape_; }
  std::span<T> values() { return values_; }
  std::span<const T> values() const { return values_; }
  friend bool operator==(const Tensor&, const Tensor&) = default;

 private:
  Tensor(TensorShape shape, std::vector<T> values)
      : shape_(std::move(shape)), values_(std::move(values)) {}
  TensorShape shape_ = {0};
  std::vector<T> values_;
};

template <typename T>
struct Codec<Tensor<T>> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin =
      Codec<TensorShape>::kBytesMin + Codec<std::vector<T>>::kBytesMin;
  static constexpr std::uint64_t kHash = TypeHash::mix(TypeHash::of("tensor"), Codec<T>::kHash);
  static void encode(Encoder& out, const Tensor<T>& value) {
    Codec<TensorShape>::encode(out, value.shape());
    out.put_count(value.values().size());
    out.append(value.values().data(), value.values().size_bytes());
  }
  static bool decode(Decoder& in, Tensor<T>& value) {
    TensorShape shape;
    std::vector<T> values;
    if (!Codec<TensorShape>::decode(in, shape) || !Codec<std::vector<T>>::decode(in, values)) {
      return false;
    }
    auto tensor = Tensor<T>::of(std::move(values), std::move(shape));
    if (!tensor.ok()) return in.fail(tensor.status());
    value = std::move(*tensor);
    return true;
  }
};

template <typename T>
struct ObjectLayout<Tensor<T>> {
  using View = TensorView<const T>;
  static constexpr bool kInPlace = true;
  static Status check(std::span<const std::byte> bytes) {
    return detail::read_tensor_header(bytes, sizeof(T)).status();
  }
  static View view(std::span<const std::byte> bytes) {
    auto shape = detail::read_tensor_header(bytes, sizeof(T));
    if (!shape.ok()) return {};  // (an Object that has not been read)
    auto strides = detail::row_strides(*shape);
    const auto* const elements = bytes.data() + detail::tensor_header_bytes(shape->size());
    return View(reinterpret_cast<const T*>(elements), std::move(*shape), std::move(strides));
  }
  static std::size_t bytes_in(const View& tensor) {
    return detail::tensor_header_bytes(tensor.rank()) + tensor.size() * sizeof(T);
  }
  static void write(const View& tensor, std::span<std::byte> into) {
    detail::write_tensor_header(tensor.shape(), into);
    tensor.copy_to(reinterpret_cast<T*>(into.data() + detail::tensor_header_bytes(tensor.rank())));
  }
};
template <typename T>
struct ObjectContent<TensorView<T>> {
  using Type = Tensor<std::remove_const_t<T>>;
};

}  // namespace troupe
