#include "scheduler/policy/cluster_view.h"

#include <algorithm>

#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

constexpr double kWholeSlack = 1 << 20;

}  // namespace

bool RowSet::none() const {
  return std::all_of(words_.begin(), words_.end(), [](std::uint64_t word) { return word == 0; });
}

void RowSet::unite(const RowSet& other) {
  if (words_.size() < other.words_.size()) words_.resize(other.words_.size());
  for (std::size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
}

void RowSet::intersect(const RowSet& other) {
  if (words_.size() > other.words_.size()) words_.resize(other.words_.size());
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
}

void RowSet::subtract(const RowSet& other) {
  const std::size_t common = std::min(words_.size(), other.words_.size());
  for (std::size_t i = 0; i < common; ++i) words_[i] &= ~other.words_[i];
}

void ClusterView::put(const NodeCapacity& node) {
  put(node.node_id, node.name, node.total, node.available, node.labels);
}

void ClusterView::put(NodeId id, const std::string& name, const wire::Resources& total,
                      const wire::Resources& available, const Labels& labels) {
  auto [known, added] = row_of_.emplace(id, rows_.size());
  if (added && !free_rows_.empty()) {
    known->second = free_rows_.back();
    free_rows_.pop_back();
  } else if (added) {
    rows_.emplace_back();
    slack_.push_back(0);
    for (auto& [resource, column] : columns_) {
      column.total.push_back(0);
      column.available.push_back(0);
    }
  }
  const std::size_t row = known->second;
  Row& entry = rows_[row];
  if (added) {
    entry.id = id;
    present_.set(row, true);
  }
  if (entry.name != name) entry.name = name;
  if (entry.labels != labels) set_labels(row, labels);
  if (entry.total != total) set_total(row, total);
  set_available(row, available);
}

void ClusterView::remove(NodeId id) {
  const auto known = row_of_.find(id);
  if (known == row_of_.end()) return;
  const std::size_t row = known->second;
  set_labels(row, {});
  set_total(row, {});
  present_.set(row, false);
  slack_[row] = 0;
  rows_[row] = {};
  free_rows_.push_back(row);
  row_of_.erase(known);
}

void ClusterView::set_labels(std::size_t row, const Labels& labels) {
  for (const auto& [key, value] : rows_[row].labels) {
    auto& values = labels_[key];
    const auto entry = values.find(value);
    entry->second.set(row, false);
    if (entry->second.none()) values.erase(entry);
    if (values.empty()) labels_.erase(key);
  }
  for (const auto& [key, value] : labels) labels_[key][value].set(row, true);
  rows_[row].labels = labels;
}

void ClusterView::set_total(std::size_t row, const wire::Resources& total) {
  for (const auto& [resource, amount] : rows_[row].total) {
    const auto column = columns_.find(resource);
    column->second.total[row] = 0;
    column->second.available[row] = 0;
    // Nodes with resources of their own come and go: no column stays for nobody.
    if (--column->second.nodes == 0) columns_.erase(column);
  }
  for (const auto& [resource, amount] : total) {
    Column& column = columns_[resource];
    column.total.resize(rows_.size());
    column.available.resize(rows_.size());
    column.total[row] = amount;
    ++column.nodes;
  }
  rows_[row].total = total;
}

void ClusterView::set_available(std::size_t row, const wire::Resources& available) {
  std::int64_t slack = 0;
  for (const auto& [resource, total] : rows_[row].total) {
    const std::int64_t amount = amount_of(available, resource);
    columns_.find(resource)->second.available[row] = amount;
    if (total > 0) {
      slack += static_cast<std::int64_t>(kWholeSlack * static_cast<double>(amount) /
                                         static_cast<double>(total));
    }
  }
  slack_[row] = slack;
}

std::size_t ClusterView::row_of(NodeId id) const {
  const auto known = row_of_.find(id);
  return known == row_of_.end() ? kNoRow : known->second;
}

const ClusterView::Column* ClusterView::column(std::string_view resource) const {
  const auto found = columns_.find(resource);
  return found == columns_.end() ? nullptr : &found->second;
}

RowSet ClusterView::matching(const wire::LabelSelector& selector) const {
  RowSet rows = present_;
  for (const wire::LabelTerm& term : selector) {
    RowSet holding;
    const auto values = labels_.find(term.key);
    if (values != labels_.end() && term.values.empty()) {
      for (const auto& [value, having] : values->second) holding.unite(having);
    } else if (values != labels_.end()) {
      for (const std::string& value : term.values) {
        const auto having = values->second.find(value);
        if (having != values->second.end()) holding.unite(having->second);
      }
    }
    if (term.negated) {
      rows.subtract(holding);
    } else {
      rows.intersect(holding);
    }
  }
  return rows;
}

}  // namespace troupe::scheduler
