#pragma once
// Rows that are wanted in another order than that in which they are read. They are kept on the disk
// with that order: memory does not grow with them.

#include <cstdint>
#include <string>

#include "runtime/base/scratch_file.h"
#include "train/data/conversation.h"

namespace troupe::train {

using RowOrder = ScratchArray<std::uint32_t>;

class KeptRows {
 public:
  // On the disk of this folder; an empty one: in memory.
  static Result<KeptRows> create(const std::string& folder);

  // kUnsupported where there are more than an order may have.
  Status add(const Conversation& row);
  std::uint32_t size() const { return static_cast<std::uint32_t>(ends_.items().size()); }
  Conversation row(std::uint32_t index) const;
  // Whether the row has no fault.
  bool is_sample(std::uint32_t index) const;

 private:
  KeptRows(ScratchFile bytes, ScratchArray<std::uint64_t> ends)
      : bytes_(std::move(bytes)), ends_(std::move(ends)) {}
  std::size_t begin_of(std::uint32_t index) const;

  ScratchFile bytes_;
  ScratchArray<std::uint64_t> ends_;  // of each row in bytes_
  std::string written_;               // of one row
};

// Rows, and the order in which they are wanted: a row may stand in it twice, or not at all.
struct OrderedRows {
  KeptRows rows;
  RowOrder order;

  static Result<OrderedRows> create(const std::string& folder);
};

}  // namespace troupe::train
