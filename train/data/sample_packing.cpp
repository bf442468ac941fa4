#include "train/data/sample_packing.h"

#include <algorithm>
#include <bit>

namespace troupe::train {
namespace {

using Bins = std::vector<std::vector<std::uint32_t>>;

// The room left in every bin, as a tree of maxima: the first bin with enough of it is found in
// steps as many as the tree is high.
class Rooms {
 public:
  explicit Rooms(std::size_t bins_max)
      : leaves_(std::bit_ceil(std::max<std::size_t>(1, bins_max))) {
    most_.assign(2 * leaves_, kNone);
  }
  void set(std::size_t bin, std::int64_t room) {
    std::size_t at = leaves_ + bin;
    most_[at] = room;
    for (at /= 2; at > 0; at /= 2) most_[at] = std::max(most_[2 * at], most_[2 * at + 1]);
  }
  std::int64_t of(std::size_t bin) const { return most_[leaves_ + bin]; }
  // The first with at least `length`, or as many as there are leaves.
  std::size_t first_with(std::int64_t length) const {
    if (most_[1] < length) return leaves_;
    std::size_t at = 1;
    while (at < leaves_) at = most_[2 * at] >= length ? 2 * at : 2 * at + 1;
    return at - leaves_;
  }
  static constexpr std::int64_t kNone = -1;

 private:
  std::size_t leaves_;
  std::vector<std::int64_t> most_;
};

void first_fit(std::span<const std::uint32_t> group, std::span<const std::int32_t> lengths,
               const SamplePacking& packing, Bins& out) {
  Rooms rooms(group.size());
  Bins bins;
  for (const auto sample : group) {
    const std::int64_t length = lengths[sample];
    auto bin = rooms.first_with(length);
    if (bin >= bins.size()) {
      bin = bins.size();
      bins.emplace_back();
      rooms.set(bin, packing.capacity);
    }
    bins[bin].push_back(sample);
    const bool full = std::ssize(bins[bin]) >= packing.bin_size;
    rooms.set(bin, full ? Rooms::kNone : rooms.of(bin) - length);
  }
  std::move(bins.begin(), bins.end(), std::back_inserter(out));
}

void next_fit(std::span<const std::uint32_t> order, std::span<const std::int32_t> lengths,
              const SamplePacking& packing, Bins& out) {
  std::int64_t room = 0;
  for (const auto sample : order) {
    const std::int64_t length = lengths[sample];
    if (out.empty() || length > room) {
      out.emplace_back();
      room = packing.capacity;
    }
    out.back().push_back(sample);
    room -= length;
  }
}

}  // namespace

std::vector<std::vector<std::uint32_t>> pack_samples(std::span<const std::uint32_t> order,
                                                     std::span<const std::int32_t> lengths,
                                                     const SamplePacking& packing) {
  Bins bins;
  if (packing.sequentially) {
    next_fit(order, lengths, packing, bins);
  } else {
    const auto group = static_cast<std::size_t>(packing.group_size);
    for (std::size_t at = 0; at < order.size(); at += group)
      first_fit(order.subspan(at, std::min(group, order.size() - at)), lengths, packing, bins);
  }
  if (packing.batch_bins == 1) return bins;
  Bins batches;
  const auto count = static_cast<std::size_t>(packing.batch_bins);
  for (std::size_t at = 0; at + count <= bins.size(); at += count) {
    auto& batch = batches.emplace_back();
    for (std::size_t bin = at; bin < at + count; ++bin)
      batch.insert(batch.end(), bins[bin].begin(), bins[bin].end());
  }
  return batches;
}

}  // namespace troupe::train
