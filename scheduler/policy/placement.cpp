#include "scheduler/policy/placement.h"

#include <algorithm>
#include <numeric>

#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

constexpr std::size_t kNone = ClusterView::kNoRow;

// An amount of a resource, by the resource's place among those that the request names.
struct Need {
  std::size_t column = 0;
  std::int64_t amount = 0;
};

// What equal bundles have in common.
struct Shape {
  const Bundle* like = nullptr;
  std::vector<Need> needs;
  RowSet allowed;
};

bool same_shape(const Bundle& a, const Bundle& b) {
  return a.need == b.need && a.affinity == b.affinity && a.selector == b.selector &&
         a.preference == b.preference;
}

// One attempt to place a request.
class Search {
 public:
  enum class Room : std::uint8_t { kFree, kWhole };

  Search(const PlacementRequest& request, const ClusterView& view, const KeptFree* kept_free,
         Room room, bool preferences)
      : bundles_(request.bundles), view_(view), whole_(room == Room::kWhole) {
    add_shapes(preferences);
    for (std::size_t i = 0; i < bundles_.size(); ++i) {
      const auto& preferred = bundles_[i].preferred;
      preferred_.push_back(preferred && !whole_ ? view.row_of(*preferred) : kNone);
      held_.push_back(preferred_[i] == kNone ? std::vector<Need>() : needs_of(bundles_[i].held));
    }
    if (kept_free != nullptr) keep_free(*kept_free);
  }

  bool run(wire::PlacementStrategy strategy, std::span<const std::size_t> order) {
    result_.assign(bundles_.size(), kNone);
    left_ = start_;
    switch (strategy) {
      case wire::PlacementStrategy::kPack:
        return pack(order);
      case wire::PlacementStrategy::kSpread:
        return spread(order);
      case wire::PlacementStrategy::kStrictPack:
        return take_single_node(order);
      case wire::PlacementStrategy::kStrictSpread:
        return strict_spread(order);
    }
    return false;
  }

  std::vector<NodeId> result() const {
    std::vector<NodeId> nodes;
    nodes.reserve(result_.size());
    for (std::size_t row : result_) nodes.push_back(view_.id(row));
    return nodes;
  }

 private:
  // --- what is asked for ---

  std::size_t column_of(const std::string& resource) {
    for (std::size_t i = 0; i < resources_.size(); ++i) {
      if (resources_[i] == resource) return i;
    }
    resources_.push_back(resource);
    const ClusterView::Column* column = view_.column(resource);
    start_.push_back(column == nullptr ? std::vector<std::int64_t>(view_.row_count())
                     : whole_          ? column->total
                                       : column->available);
    return resources_.size() - 1;
  }

  std::vector<Need> needs_of(const wire::Resources& resources) {
    std::vector<Need> needs;
    for (const auto& [name, amount] : resources) {
      if (amount > 0) needs.push_back({column_of(name), amount});
    }
    return needs;
  }

  void add_shapes(bool preferences) {
    for (std::size_t i = 0; i < bundles_.size(); ++i) {
      const Bundle& bundle = bundles_[i];
      std::size_t shape = shapes_.size();
      for (std::size_t s = shapes_.size(); s-- > 0;) {
        if (same_shape(*shapes_[s].like, bundle)) shape = s;
      }
      shape_.push_back(shape);
      if (shape < shapes_.size()) continue;
      Shape added{&bundle, needs_of(bundle.need), view_.matching(bundle.selector)};
      if (preferences) added.allowed.intersect(view_.matching(bundle.preference));
      if (bundle.affinity) {
        RowSet only;
        const std::size_t row = view_.row_of(*bundle.affinity);
        if (row != kNone) only.set(row, true);
        added.allowed.intersect(only);
      }
      shapes_.push_back(std::move(added));
    }
  }

  void keep_free(const KeptFree& kept) {
    for (const auto& [id, resources] : kept) {
      const std::size_t row = view_.row_of(id);
      if (row == kNone) continue;
      for (std::size_t i = 0; i < resources_.size(); ++i) {
        start_[i][row] -= amount_of(resources, resources_[i]);
      }
    }
  }

  // --- taking room ---

  const Shape& shape_of(std::size_t bundle) const { return shapes_[shape_[bundle]]; }

  std::int64_t held(std::size_t bundle, std::size_t row, std::size_t column) const {
    if (preferred_[bundle] != row) return 0;
    for (const Need& held : held_[bundle]) {
      if (held.column == column) return held.amount;
    }
    return 0;
  }

  bool fits(std::size_t bundle, std::size_t row) const {
    for (const Need& need : shape_of(bundle).needs) {
      if (left_[need.column][row] + held(bundle, row, need.column) < need.amount) return false;
    }
    return true;
  }
  bool can_take(std::size_t bundle, std::size_t row) const {
    return shape_of(bundle).allowed.test(row) && fits(bundle, row);
  }
  void take(std::size_t bundle, std::size_t row) {
    for (const Need& need : shape_of(bundle).needs) {
      left_[need.column][row] -= need.amount - held(bundle, row, need.column);
    }
    result_[bundle] = row;
  }

  // Whether row `a` is a better choice than `b` for what packs: tighter; among equals the smaller
  // id. On empty nodes it is the freest one that will be free soonest.
  bool tighter(std::size_t a, std::size_t b) const {
    if (b == kNone) return true;
    const std::int64_t slack_a = whole_ ? -view_.slack(a) : view_.slack(a);
    const std::int64_t slack_b = whole_ ? -view_.slack(b) : view_.slack(b);
    return slack_a != slack_b ? slack_a < slack_b : view_.id(a) < view_.id(b);
  }
  bool roomier(std::size_t a, std::size_t b) const {
    if (b == kNone) return true;
    if (view_.slack(a) != view_.slack(b)) return view_.slack(a) > view_.slack(b);
    return view_.id(a) < view_.id(b);
  }

  std::size_t tightest(std::size_t bundle) const {
    std::size_t best = kNone;
    for (std::size_t row = 0; row < view_.row_count(); ++row) {
      if (can_take(bundle, row) && tighter(row, best)) best = row;
    }
    return best;
  }

  // --- strategies ---

  bool pack(std::span<const std::size_t> order) {
    if (!take_bound(order)) return false;
    if (take_single_node(order)) return true;
    std::size_t current = kNone;
    for (std::size_t i : order) {
      if (result_[i] != kNone) continue;
      if (current == kNone || !can_take(i, current)) current = best_node(i, order);
      if (current == kNone) return false;
      take(i, current);
    }
    return true;
  }

  // Bundles that have no choice, or whose preferred node has room.
  bool take_bound(std::span<const std::size_t> order) {
    for (std::size_t i : order) {
      const auto& wanted = bundles_[i].affinity;
      if (!wanted) continue;
      const std::size_t row = view_.row_of(*wanted);
      if (row == kNone || !can_take(i, row)) return false;
      take(i, row);
    }
    for (std::size_t i : order) {
      const std::size_t row = preferred_[i];
      if (result_[i] == kNone && row != kNone && can_take(i, row)) take(i, row);
    }
    return true;
  }

  bool take_single_node(std::span<const std::size_t> order) {
    std::size_t best = kNone;
    if (order.size() == 1) {
      if (result_[order[0]] != kNone) return true;
      best = tightest(order[0]);
    } else {
      std::vector<std::int64_t> sum(resources_.size());
      RowSet allowed = view_.rows();
      bool any = false;
      std::vector<bool> seen(shapes_.size());
      for (std::size_t i : order) {
        if (result_[i] != kNone) continue;
        any = true;
        const Shape& shape = shape_of(i);
        for (const Need& need : shape.needs) sum[need.column] += need.amount;
        if (!seen[shape_[i]]) allowed.intersect(shape.allowed);
        seen[shape_[i]] = true;
      }
      if (!any) return true;
      for (std::size_t row = 0; row < view_.row_count(); ++row) {
        if (allowed.test(row) && fits_sum(sum, row, order) && tighter(row, best)) best = row;
      }
    }
    if (best == kNone) return false;
    for (std::size_t i : order) {
      if (result_[i] == kNone) take(i, best);
    }
    return true;
  }

  bool fits_sum(const std::vector<std::int64_t>& sum, std::size_t row,
                std::span<const std::size_t> order) const {
    for (std::size_t column = 0; column < sum.size(); ++column) {
      std::int64_t room = left_[column][row];
      if (room >= sum[column]) continue;
      for (std::size_t i : order) {
        if (result_[i] == kNone) room += held(i, row, column);
      }
      if (room < sum[column]) return false;
    }
    return true;
  }

  // The node that takes the most of what is left to place, from `first` on.
  std::size_t best_node(std::size_t first, std::span<const std::size_t> order) const {
    std::size_t best = kNone;
    std::size_t best_count = 0;
    const auto from = std::find(order.begin(), order.end(), first);
    std::vector<std::int64_t> left(resources_.size());
    for (std::size_t row = 0; row < view_.row_count(); ++row) {
      if (!can_take(first, row)) continue;
      for (std::size_t column = 0; column < left.size(); ++column)
        left[column] = left_[column][row];
      std::size_t count = 0;
      for (auto it = from; it != order.end(); ++it) {
        if (result_[*it] != kNone) continue;
        if (!take_from(left, *it, row)) break;
        ++count;
      }
      if (count > best_count || (count == best_count && best != kNone && tighter(row, best))) {
        best = row;
        best_count = count;
      }
    }
    return best;
  }
  bool take_from(std::vector<std::int64_t>& left, std::size_t bundle, std::size_t row) const {
    const Shape& shape = shape_of(bundle);
    if (!shape.allowed.test(row)) return false;
    for (const Need& need : shape.needs) {
      left[need.column] -= need.amount - held(bundle, row, need.column);
      if (left[need.column] < 0) return false;
    }
    return true;
  }

  bool spread(std::span<const std::size_t> order) {
    if (!take_bound(order)) return false;
    std::vector<std::size_t> count(view_.row_count());
    for (std::size_t row : result_) {
      if (row != kNone) ++count[row];
    }
    for (std::size_t i : order) {
      if (result_[i] != kNone) continue;
      std::size_t best = kNone;
      for (std::size_t row = 0; row < view_.row_count(); ++row) {
        if (!can_take(i, row)) continue;
        const bool fewer = best != kNone && count[row] < count[best];
        const bool equal = best == kNone || count[row] == count[best];
        if (fewer || (equal && roomier(row, best))) best = row;
      }
      if (best == kNone) return false;
      take(i, best);
      ++count[best];
    }
    return true;
  }

  bool strict_spread(std::span<const std::size_t> order) {
    if (order.size() > view_.size()) return false;
    user_.assign(view_.row_count(), kNone);
    for (std::size_t i : order) {
      const std::size_t row = preferred_[i];
      if (row != kNone && user_[row] == kNone && can_take(i, row)) {
        user_[row] = i;
        result_[i] = row;
      }
    }
    for (std::size_t i : order) {
      if (result_[i] != kNone) continue;
      std::size_t best = kNone;
      for (std::size_t row = 0; row < view_.row_count(); ++row) {
        if (user_[row] == kNone && can_take(i, row) && tighter(row, best)) best = row;
      }
      if (best != kNone) {
        user_[best] = i;
        result_[i] = best;
        continue;
      }
      std::vector<bool> tried(view_.row_count());
      if (!make_way(i, tried)) return false;
    }
    return true;
  }
  // Kuhn's augmenting paths: a node for `bundle`, its user there moved to another node where one is
  // to be had. `left_` stays untouched: a node takes one bundle.
  bool make_way(std::size_t bundle, std::vector<bool>& tried) {
    for (std::size_t row = 0; row < view_.row_count(); ++row) {
      if (tried[row] || !can_take(bundle, row)) continue;
      tried[row] = true;
      if (user_[row] != kNone && !make_way(user_[row], tried)) continue;
      user_[row] = bundle;
      result_[bundle] = row;
      return true;
    }
    return false;
  }

  const std::span<const Bundle> bundles_;
  const ClusterView& view_;
  const bool whole_;
  std::vector<std::string> resources_;
  std::vector<Shape> shapes_;
  std::vector<std::size_t> shape_;      // by bundle
  std::vector<std::size_t> preferred_;  // by bundle: row
  std::vector<std::vector<Need>> held_;
  // By resource and row: before anything is taken, and now.
  std::vector<std::vector<std::int64_t>> start_;
  std::vector<std::vector<std::int64_t>> left_;
  std::vector<std::size_t> result_;
  std::vector<std::size_t> user_;  // by row: its bundle
};

std::int64_t largest_share(const Bundle& bundle) {
  std::int64_t largest = 0;
  for (const auto& [name, amount] : bundle.need) {
    if (name != kMemory) largest = std::max(largest, amount);
  }
  return largest;
}

std::optional<std::vector<NodeId>> search(const PlacementRequest& request, const ClusterView& view,
                                          const KeptFree* kept_free, Search::Room room,
                                          bool preferences) {
  Search search(request, view, kept_free, room, preferences);
  std::vector<std::size_t> order(request.bundles.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (search.run(request.strategy, order)) return search.result();
  const bool strict = request.strategy == wire::PlacementStrategy::kStrictPack ||
                      request.strategy == wire::PlacementStrategy::kStrictSpread;
  if (order.size() < 2 || strict) return std::nullopt;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return largest_share(request.bundles[a]) > largest_share(request.bundles[b]);
  });
  if (search.run(request.strategy, order)) return search.result();
  if (request.strategy != wire::PlacementStrategy::kSpread) return std::nullopt;
  if (search.run(wire::PlacementStrategy::kPack, order)) return search.result();
  return std::nullopt;
}

// --- in words ------------------------------------------------------------------------------------

// Nodes that an explanation names one by one; more are counted.
constexpr std::size_t kNodesExplainedMax = 8;

const char* describe(wire::PlacementStrategy strategy) {
  switch (strategy) {
    case wire::PlacementStrategy::kPack:
    case wire::PlacementStrategy::kSpread:
      return " at once";
    case wire::PlacementStrategy::kStrictPack:
      return " at once on one node";
    case wire::PlacementStrategy::kStrictSpread:
      return " at once, each on a node of its own";
  }
  return "";
}

std::string describe(const PlacementRequest& request) {
  const auto& bundles = request.bundles;
  const Bundle& first = bundles.front();
  if (bundles.size() == 1) return format_resources(first.need);
  const bool equal = std::all_of(bundles.begin(), bundles.end(),
                                 [&](const Bundle& b) { return b.need == first.need; });
  if (equal) {
    return fmt::format("{} × ({}){}", bundles.size(), format_resources(first.need),
                       describe(request.strategy));
  }
  wire::Resources sum;
  for (const Bundle& bundle : bundles) add(sum, bundle.need);
  return fmt::format("{} bundles{}, together {}", bundles.size(), describe(request.strategy),
                     format_resources(sum));
}

// What stands in the way of one bundle, node by node.
class Obstacles {
 public:
  Obstacles(const Bundle& bundle, const ClusterView& view, const KeptFree* kept_free)
      : bundle_(bundle), view_(view), kept_free_(kept_free) {
    for (const wire::LabelTerm& term : bundle.selector) {
      terms_.emplace_back(&term, view.matching({term}));
    }
    for (const auto& [name, amount] : bundle.need) {
      needs_.push_back({&name, amount, view.column(name)});
    }
  }

  // The first condition on labels that the node does not fulfil.
  const wire::LabelTerm* unfulfilled(std::size_t row) const {
    for (const auto& [term, rows] : terms_) {
      if (!rows.test(row)) return term;
    }
    return nullptr;
  }
  // The first resource of which it has too little.
  const std::string* lacking(std::size_t row) const {
    for (const Item& need : needs_) {
      if (free(need, row) - kept(need, row) < need.amount) return need.name;
    }
    return nullptr;
  }
  bool none(std::size_t row) const {
    return unfulfilled(row) == nullptr && lacking(row) == nullptr;
  }

  std::string describe(std::size_t row) const {
    const std::string& node = view_.name(row);
    if (const wire::LabelTerm* term = unfulfilled(row)) {
      const auto label = view_.labels(row).find(term->key);
      return fmt::format("{} does not do for {}: it has {}", node, format_selector({*term}),
                         label == view_.labels(row).end()
                             ? "no such label"
                             : fmt::format("{}={}", term->key, label->second));
    }
    std::string text;
    for (const Item& need : needs_) {
      const std::int64_t total = need.column == nullptr ? 0 : need.column->total[row];
      text +=
          fmt::format("{}{} {} of {} free", text.empty() ? "" : ", ", *need.name,
                      format_amount(*need.name, free(need, row)), format_amount(*need.name, total));
      if (const std::int64_t amount = kept(need, row); amount > 0) {
        text += fmt::format(" ({} kept for what waits longer)", format_amount(*need.name, amount));
      }
    }
    return fmt::format("{} has {}", node, text.empty() ? "room" : text);
  }

  // The nodes that are not described, by what is in the way.
  std::string count(std::span<const std::size_t> rows) const {
    std::map<const wire::LabelTerm*, std::size_t> by_term;
    std::map<const std::string*, std::size_t> by_resource;
    std::size_t roomy = 0;
    for (std::size_t row : rows) {
      if (const wire::LabelTerm* term = unfulfilled(row)) {
        ++by_term[term];
      } else if (const std::string* name = lacking(row)) {
        ++by_resource[name];
      } else {
        ++roomy;
      }
    }
    std::string text = fmt::format("; of {} more nodes", rows.size());
    for (const wire::LabelTerm& term : bundle_.selector) {
      const auto found = by_term.find(&term);
      if (found == by_term.end()) continue;
      text += fmt::format(", {} do not do for {}", found->second, format_selector({term}));
    }
    for (const Item& need : needs_) {
      const auto found = by_resource.find(need.name);
      if (found == by_resource.end()) continue;
      text += fmt::format(", {} have too little {}", found->second, *need.name);
    }
    if (roomy > 0) text += fmt::format(", {} have room, but not for all", roomy);
    return text;
  }

 private:
  struct Item {
    const std::string* name;
    std::int64_t amount;
    const ClusterView::Column* column;
  };
  static std::int64_t free(const Item& need, std::size_t row) {
    return need.column == nullptr ? 0 : need.column->available[row];
  }
  std::int64_t kept(const Item& need, std::size_t row) const {
    if (kept_free_ == nullptr) return 0;
    const auto found = kept_free_->find(view_.id(row));
    return found == kept_free_->end() ? 0 : amount_of(found->second, *need.name);
  }

  const Bundle& bundle_;
  const ClusterView& view_;
  const KeptFree* kept_free_;
  std::vector<std::pair<const wire::LabelTerm*, RowSet>> terms_;
  std::vector<Item> needs_;
};

// The bundle to speak of: one that no node could hold, if there is such a one.
const Bundle& hardest(const PlacementRequest& request, const ClusterView& view,
                      const KeptFree* kept_free, std::span<const std::size_t> rows) {
  const Bundle* before = nullptr;
  for (const Bundle& bundle : request.bundles) {
    if (before != nullptr && same_shape(*before, bundle)) continue;
    before = &bundle;
    const Obstacles obstacles(bundle, view, kept_free);
    const bool nowhere = std::none_of(rows.begin(), rows.end(),
                                      [&](std::size_t row) { return obstacles.none(row); });
    if (nowhere) return bundle;
  }
  return request.bundles.front();
}

}  // namespace

std::optional<std::vector<NodeId>> place(const PlacementRequest& request, const ClusterView& view,
                                         const KeptFree* kept_free) {
  const bool preferences =
      std::any_of(request.bundles.begin(), request.bundles.end(),
                  [](const Bundle& bundle) { return !bundle.preference.empty(); });
  if (preferences) {
    auto placed = search(request, view, kept_free, Search::Room::kFree, true);
    if (placed) return placed;
  }
  return search(request, view, kept_free, Search::Room::kFree, false);
}

std::optional<std::vector<NodeId>> place_on_empty(const PlacementRequest& request,
                                                  const ClusterView& view) {
  return search(request, view, nullptr, Search::Room::kWhole, false);
}

std::string explain(const PlacementRequest& request, const ClusterView& view,
                    const KeptFree* kept_free) {
  std::string text = fmt::format("needs {}", describe(request));
  std::vector<std::size_t> rows;
  for (std::size_t row = 0; row < view.row_count(); ++row) {
    if (view.rows().test(row)) rows.push_back(row);
  }
  const std::size_t named = std::min(rows.size(), kNodesExplainedMax);
  std::partial_sort(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(named), rows.end(),
                    [&](std::size_t a, std::size_t b) { return view.id(a) < view.id(b); });
  const Bundle& bundle = hardest(request, view, kept_free, rows);
  if (!bundle.selector.empty()) {
    text += fmt::format(" on a node with {}", format_selector(bundle.selector));
  }
  if (bundle.affinity) {
    const std::size_t row = view.row_of(*bundle.affinity);
    if (row == kNone) {
      return text +
             fmt::format(" on node {}, which is not in the cluster", bundle.affinity->brief());
    }
    text += fmt::format(" on node {}", view.name(row));
  }
  if (rows.empty()) return text + "; no node is there that takes actors (troupe worker starts one)";
  const bool unequal = std::any_of(request.bundles.begin(), request.bundles.end(),
                                   [&](const Bundle& b) { return b.need != bundle.need; });
  if (unequal) text += fmt::format("; one of them needs {}", format_resources(bundle.need));
  const Obstacles obstacles(bundle, view, kept_free);
  const std::span<const std::size_t> all = rows;
  for (std::size_t row : all.first(named)) text += "; " + obstacles.describe(row);
  if (rows.size() > named) text += obstacles.count(all.subspan(named));
  return text;
}

}  // namespace troupe::scheduler
