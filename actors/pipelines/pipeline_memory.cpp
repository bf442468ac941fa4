#include "actors/pipelines/pipeline_memory.h"

#include <algorithm>
#include <cstring>

namespace troupe::detail {

// Neighbours' lines are not shared, and what an item's first bytes are comes with its head.
std::uint64_t PipelineMemory::slot_bytes(const PipelinePlan& plan) {
  return (sizeof(Slot) + plan.item_bytes_max + 127) / 128 * 128;
}

std::uint64_t PipelineMemory::bytes(const PipelinePlan& plan) {
  return kPipelinePageBytes + plan.channels() * plan.in_flight * slot_bytes(plan);
}

PipelineMemory::PipelineMemory(std::byte* data, const PipelinePlan& plan)
    : data_(data),
      in_flight_(plan.in_flight),
      item_bytes_max_(plan.item_bytes_max),
      slot_bytes_(slot_bytes(plan)) {}

PipelineMemory::Item PipelineMemory::read(std::uint32_t channel, std::uint64_t number) const {
  const Slot& from = slot(channel, number);
  const auto size = std::min<std::uint64_t>(from.bytes, item_bytes_max_);
  return {from.failed != 0, {reinterpret_cast<const std::byte*>(&from + 1), size}};
}

std::span<const std::byte> PipelineMemory::references(std::uint32_t channel,
                                                      std::uint64_t number) const {
  const Item item = read(channel, number);
  const auto size = std::min<std::uint64_t>(slot(channel, number).reference_bytes,
                                            item_bytes_max_ - item.bytes.size());
  return {item.bytes.data() + item.bytes.size(), size};
}

void PipelineMemory::offer(std::uint32_t channel, std::uint64_t number,
                           std::span<const std::byte> bytes,
                           std::span<const std::byte> references) const {
  Slot& to = slot(channel, number);
  auto* const data = reinterpret_cast<std::byte*>(&to + 1);
  if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
  std::memcpy(data + bytes.size(), references.data(), references.size());
  to.bytes = static_cast<std::uint32_t>(bytes.size());
  to.failed = 0;
  to.reference_bytes = static_cast<std::uint32_t>(references.size());
  to.offered.store(number + 1, std::memory_order_release);
  page().offers.fetch_add(1, std::memory_order_seq_cst);
}

void PipelineMemory::accept(std::uint32_t channel, std::uint64_t number) const {
  reject(channel, number);
  slot(channel, number).published.store(number + 1, std::memory_order_seq_cst);
}

void PipelineMemory::publish(std::uint32_t channel, std::uint64_t number, bool failed,
                             std::span<const std::byte> bytes) const {
  Slot& to = slot(channel, number);
  auto* const data = reinterpret_cast<std::byte*>(&to + 1);
  if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
  to.bytes = static_cast<std::uint32_t>(bytes.size());
  to.failed = failed ? 1 : 0;
  to.published.store(number + 1, std::memory_order_seq_cst);
}

}  // namespace troupe::detail
