#pragma once
// The nodes as placement looks at them: one column of amounts per resource, one bit set per label,
// so that a decision among a thousand nodes reads a few contiguous arrays.
//
// Kept up to date by whoever owns the nodes. Deterministic: nothing here depends on addresses or
// hashes, and choices between equal nodes go by their ids. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/wire/types.h"
#include "scheduler/policy/labels.h"

namespace troupe::scheduler {

// A node that takes actors. `available` is what nothing holds.
struct NodeCapacity {
  NodeId node_id;
  std::string name;
  wire::Resources total;
  wire::Resources available;
  Labels labels;
};

// A set of rows.
class RowSet {
 public:
  bool test(std::size_t row) const {
    return row / 64 < words_.size() && (words_[row / 64] >> (row % 64) & 1) != 0;
  }
  void set(std::size_t row, bool value) {
    if (row / 64 >= words_.size()) words_.resize(row / 64 + 1);
    const std::uint64_t bit = std::uint64_t{1} << (row % 64);
    value ? words_[row / 64] |= bit : words_[row / 64] &= ~bit;
  }
  bool none() const;
  void unite(const RowSet& other);
  void intersect(const RowSet& other);
  void subtract(const RowSet& other);

 private:
  std::vector<std::uint64_t> words_;
};

class ClusterView {
 public:
  // Of one resource: by row, 0 where a node has none of it.
  struct Column {
    std::vector<std::int64_t> total;
    std::vector<std::int64_t> available;
    std::size_t nodes = 0;  // that have it
  };
  static constexpr std::size_t kNoRow = static_cast<std::size_t>(-1);

  // Adds the node, or says anew what it is.
  void put(const NodeCapacity& node);
  void put(NodeId id, const std::string& name, const wire::Resources& total,
           const wire::Resources& available, const Labels& labels);
  // It takes no actors any more. Nothing where it is not known.
  void remove(NodeId id);

  std::size_t size() const { return row_of_.size(); }
  // Rows are numbered below this; some may be empty.
  std::size_t row_count() const { return rows_.size(); }
  // The rows of nodes.
  const RowSet& rows() const { return present_; }
  std::size_t row_of(NodeId id) const;
  NodeId id(std::size_t row) const { return rows_[row].id; }
  const std::string& name(std::size_t row) const { return rows_[row].name; }
  const Labels& labels(std::size_t row) const { return rows_[row].labels; }
  // How much of the node is free, as a sum of fractions of its totals (2^20 is a whole): smaller is
  // tighter. A node with a GPU has one fraction more, so what needs none goes elsewhere first.
  std::int64_t slack(std::size_t row) const { return slack_[row]; }
  // Nothing where no node has it.
  const Column* column(std::string_view resource) const;
  // The rows whose labels fulfil the selector.
  RowSet matching(const wire::LabelSelector& selector) const;

 private:
  struct Row {
    NodeId id;
    std::string name;
    Labels labels;
    wire::Resources total;
  };
  void set_labels(std::size_t row, const Labels& labels);
  void set_total(std::size_t row, const wire::Resources& total);
  void set_available(std::size_t row, const wire::Resources& available);

  std::vector<Row> rows_;
  std::vector<std::size_t> free_rows_;
  std::unordered_map<NodeId, std::size_t> row_of_;  // looked up, never walked through
  RowSet present_;
  std::vector<std::int64_t> slack_;
  std::map<std::string, Column, std::less<>> columns_;
  std::map<std::string, std::map<std::string, RowSet>> labels_;  // by key and value
};

}  // namespace troupe::scheduler
