#include "troupe/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <limits>

#include "runtime/base/status.h"

namespace troupe::detail {
namespace {

Status shape_error(const TensorShape& shape, std::string_view what) {
  return error(Code::kInvalidArgument, "a tensor of shape [{}]: {}", fmt::join(shape, ", "), what);
}

}  // namespace

Result<std::size_t> tensor_size(const TensorShape& shape, std::size_t element_bytes) {
  if (shape.size() > kTensorDimensionsMax) {
    return error(Code::kInvalidArgument, "a tensor of {} dimensions, at most {} are possible",
                 shape.size(), kTensorDimensionsMax);
  }
  std::uint64_t bytes = element_bytes;
  bool none = false;
  for (const std::int64_t count : shape) {
    if (count < 0) return shape_error(shape, "a dimension is negative");
    none |= count == 0;
  }
  if (none) return std::size_t{0};
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  for (const std::int64_t count : shape) {
    if (static_cast<std::uint64_t>(count) > kMost / bytes) {
      return shape_error(shape, "more bytes than there are addresses");
    }
    bytes *= static_cast<std::uint64_t>(count);
  }
  return static_cast<std::size_t>(bytes / element_bytes);
}

Status check_tensor(const TensorShape& shape, const std::optional<TensorShape>& strides,
                    std::size_t elements, std::size_t element_bytes) {
  const std::size_t size = TROUPE_TRY(tensor_size(shape, element_bytes));
  if (!strides) {
    if (size == elements) return {};
    return shape_error(shape, fmt::format("it has {} elements, and {} are there", size, elements));
  }
  if (strides->size() != shape.size()) {
    return shape_error(shape, fmt::format("{} strides", strides->size()));
  }
  if (size == 0) return {};
  // The last one lies furthest behind.
  std::uint64_t last = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::int64_t stride = (*strides)[d];
    if (stride < 0) return shape_error(shape, "a stride is negative");
    const auto steps = static_cast<std::uint64_t>(shape[d] - 1);
    if (steps > 0 && static_cast<std::uint64_t>(stride) > (elements - last) / steps) {
      return shape_error(shape, fmt::format("with strides [{}] it reaches beyond {} elements",
                                            fmt::join(*strides, ", "), elements));
    }
    last += steps * static_cast<std::uint64_t>(stride);
  }
  if (last < elements) return {};
  return shape_error(shape, fmt::format("with strides [{}] it reaches beyond {} elements",
                                        fmt::join(*strides, ", "), elements));
}

TensorShape row_strides(const TensorShape& shape) {
  TensorShape strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<std::int64_t>(shape[d], 1);
  }
  return strides;
}

std::size_t tensor_header_bytes(std::size_t rank) {
  const std::size_t bytes = (1 + rank) * sizeof(std::int64_t);
  return (bytes + kObjectAlignment - 1) / kObjectAlignment * kObjectAlignment;
}

void write_tensor_header(const TensorShape& shape, std::span<std::byte> into) {
  const auto rank = static_cast<std::int64_t>(shape.size());
  std::memset(into.data(), 0, tensor_header_bytes(shape.size()));
  std::memcpy(into.data(), &rank, sizeof rank);
  if (rank > 0) {
    std::memcpy(into.data() + sizeof rank, shape.data(), shape.size() * sizeof shape[0]);
  }
}

Result<TensorShape> read_tensor_header(std::span<const std::byte> bytes,
                                       std::size_t element_bytes) {
  std::int64_t rank = 0;
  if (bytes.size() < tensor_header_bytes(0)) return Status(Code::kProtocol, "no tensor");
  std::memcpy(&rank, bytes.data(), sizeof rank);
  const bool good = rank >= 0 && rank <= static_cast<std::int64_t>(kTensorDimensionsMax);
  const std::size_t header = good ? tensor_header_bytes(static_cast<std::size_t>(rank)) : 0;
  if (!good || bytes.size() < header) return Status(Code::kProtocol, "no tensor");
  TensorShape shape(static_cast<std::size_t>(rank));
  if (rank > 0) {
    std::memcpy(shape.data(), bytes.data() + sizeof rank, shape.size() * sizeof shape[0]);
  }
  const std::size_t size = TROUPE_TRY(tensor_size(shape, element_bytes));
  if (bytes.size() - header != size * element_bytes) {
    return shape_error(shape, fmt::format("it lies in {} bytes", bytes.size() - header));
  }
  return shape;
}

}  // namespace troupe::detail
