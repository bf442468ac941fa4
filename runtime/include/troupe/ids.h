#pragma once
// 128-bit identifiers, one type per kind of thing, so that a node's id is never passed for an
// actor's. Written as 32 hexadecimal digits; people may give any unambiguous prefix.

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "troupe/status.h"

namespace troupe {

namespace detail {
// 32 hexadecimal digits to (high, low).
Result<std::array<std::uint64_t, 2>> parse_id(std::string_view hex, std::string_view kind);
std::string id_text(std::uint64_t high, std::uint64_t low);
std::string brief_id_text(std::uint64_t high);
}  // namespace detail

template <typename Tag>
struct Id {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  // Random: has next_u64().
  template <typename Random>
  static Id make(Random& random) {
    Id id{random.next_u64(), random.next_u64()};
    if (id.empty()) id.low = 1;
    return id;
  }
  static Result<Id> parse(std::string_view hex);
  bool empty() const { return high == 0 && low == 0; }
  std::string to_string() const { return detail::id_text(high, low); }
  // The first eight digits: what logs and tables show.
  std::string brief() const { return detail::brief_id_text(high); }
  friend auto operator<=>(const Id&, const Id&) = default;
};

struct NodeTag {
  static constexpr std::string_view kName = "node id";
};
struct ActorTag {
  static constexpr std::string_view kName = "actor id";
};
struct JobTag {
  static constexpr std::string_view kName = "job id";
};
struct ClientTag {
  static constexpr std::string_view kName = "client id";
};
struct GroupTag {
  static constexpr std::string_view kName = "placement group id";
};
struct SupervisorTag {
  static constexpr std::string_view kName = "supervisor id";
};
struct ObjectTag {
  static constexpr std::string_view kName = "object id";
};

using NodeId = Id<NodeTag>;
using ActorId = Id<ActorTag>;
using JobId = Id<JobTag>;
using ClientId = Id<ClientTag>;
using GroupId = Id<GroupTag>;
using SupervisorId = Id<SupervisorTag>;
using ObjectId = Id<ObjectTag>;

template <typename Tag>
Result<Id<Tag>> Id<Tag>::parse(std::string_view hex) {
  const auto parts = TROUPE_TRY(detail::parse_id(hex, Tag::kName));
  return Id{parts[0], parts[1]};
}

}  // namespace troupe

template <typename Tag>
struct std::hash<troupe::Id<Tag>> {
  std::size_t operator()(const troupe::Id<Tag>& id) const noexcept {
    return static_cast<std::size_t>(id.high ^ (id.low * 0x9e3779b97f4a7c15ULL));
  }
};
