#pragma once
// The host's way to a rank's buffers, wherever they lie: in place where that is the host's memory,
// else piece by piece through memory of the host.

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// One thread at a time. Errors: the operators' failure, what a caller's function returns.
class HostAccess {
 public:
  // Buffers are the host's memory.
  HostAccess() = default;
  // Buffers are memory of the operators' device; the operators outlive the object.
  explicit HostAccess(Operators& operators) : operators_(&operators) {}

  // Whether buffers are read and written where they lie.
  bool in_place() const { return operators_ == nullptr; }

  // Fills `target` with what `fill(at, out)` puts into `out`, the bytes from `at` on: all at once
  // in place, else pieces of at most kPieceBytes (a multiple of any element's size), in order.
  using Fill = std::function<Status(std::size_t at, std::span<std::byte> out)>;
  Status write(std::span<std::byte> target, const Fill& fill);
  Status write(std::span<std::byte> target, std::span<const std::byte> from);
  // target.size() is a multiple of 4.
  Status zero(std::span<std::byte> target);

  // Shows `source` to `see(at, bytes)`, in such pieces.
  using See = std::function<Status(std::size_t at, std::span<const std::byte> bytes)>;
  Status read(std::span<const std::byte> source, const See& see);
  // out.size() is source.size().
  Status read(std::span<const std::byte> source, std::span<std::byte> out);

  static constexpr std::size_t kPieceBytes = std::size_t{16} << 20;

 private:
  std::span<std::byte> stage(std::size_t bytes);

  Operators* operators_ = nullptr;
  std::vector<std::byte> staging_;
};

}  // namespace troupe::train
